//! The smallest HTTP client that these rows need: one request at a time over one connection that is
//! kept.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

pub struct Client {
    port: u16,
    /// The address of this machine that it calls from.
    from: Ipv4Addr,
    open: Option<BufReader<TcpStream>>,
}

pub struct Answer {
    pub status: u16,
    /// In small letters.
    head: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    }
}

impl Client {
    pub fn new(port: u16) -> Self {
        Self::from(port, Ipv4Addr::LOCALHOST)
    }

    pub fn from(port: u16, from: Ipv4Addr) -> Self {
        Self {
            port,
            from,
            open: None,
        }
    }

    pub fn get(&mut self, headers: &[(&str, String)]) -> Answer {
        // A server may have ended a connection that was kept.
        let kept = self.open.take().and_then(|open| self.ask(open, headers));
        kept.or_else(|| self.ask(self.connect(), headers))
            .expect("the server answers")
    }

    /// Asks over a new connection that first says, by the PROXY protocol, on whose behalf it is.
    pub fn get_on_behalf_of(&self, client: IpAddr) -> Answer {
        let mut open = self.connect();
        let (family, server) = if client.is_ipv6() {
            ("TCP6", "::1")
        } else {
            ("TCP4", "127.0.0.1")
        };
        let line = format!("PROXY {family} {client} {server} 40000 {}\r\n", self.port);
        open.get_mut()
            .write_all(line.as_bytes())
            .expect("a new connection takes a line");
        Self {
            port: self.port,
            from: self.from,
            open: None,
        }
        .ask(open, &[])
        .expect(
            "the server \
            answers",
        )
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket
            .bind(&SocketAddr::from((self.from, 0)).into())
            .expect("127.0.0.0/8 is this machine");
        socket
            .connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)).into())
            .expect(
                "the \
            server listens",
            );
        let stream = TcpStream::from(socket);
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        BufReader::new(stream)
    }

    fn ask(
        &mut self,
        mut open: BufReader<TcpStream>,
        headers: &[(&str, String)],
    ) -> Option<Answer> {
        let lines: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let request = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n");
        open.get_mut().write_all(request.as_bytes()).ok()?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if open.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let answer = Answer {
            status: head.split(' ').nth(1)?.parse().ok()?,
            head: head.to_lowercase(),
        };
        let length = answer
            .header("content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        open.read_exact(&mut vec![0; length]).ok()?;
        if answer.header("connection") != Some("close") {
            self.open = Some(open);
        }
        Some(answer)
    }
}
