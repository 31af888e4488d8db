use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message as Sent;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::*;

type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

async fn start() -> SocketAddr {
    serve_with(throttle().unwrap()).await
}

async fn serve_with(throttle: ThrottleLayer) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app(throttle)
        .unwrap()
        .into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn connect(address: SocketAddr, user: &str) -> Socket {
    let mut request = format!("ws://{address}/socket")
        .into_client_request()
        .unwrap();
    request
        .headers_mut()
        .insert("x-user", user.parse().unwrap());
    connect_async(request).await.unwrap().0
}

/// The answer to a message.
async fn say(socket: &mut Socket) -> Sent {
    socket.send(Sent::Text("hello".into())).await.unwrap();
    socket.next().await.unwrap().unwrap()
}

fn is_refused(answer: &Sent) -> bool {
    matches!(answer, Sent::Text(text) if text.starts_with(r#"{"error":"too many messages","retry_after_ms":"#))
}

#[tokio::test]
async fn messages_of_a_user_count_across_its_connections() {
    let address = start().await;
    let (mut first, mut second) = (connect(address, "ada").await, connect(address, "ada").await);
    for _ in 0..10 {
        for socket in [&mut first, &mut second] {
            assert_eq!(say(socket).await, Sent::Text("hello".into()));
        }
    }
    let mut more = 0;
    while !is_refused(&say(&mut first).await) {
        more += 1;
        assert!(more < 1_000, "five a second come back");
    }
    let mut other = connect(address, "bob").await;
    assert_eq!(say(&mut other).await, Sent::Text("hello".into()));
}

/// Connects, and never answers: neither a ping nor a close.
async fn connect_half_open(address: SocketAddr) -> tokio::net::TcpStream {
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = "GET /socket HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    client.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 101");
    client
}

/// Waits until a number of connections hold permits, for as long as two silences.
async fn until_open(throttle: &ThrottleLayer, connections: u64) {
    let late = tokio::time::sleep(2 * SILENCE + Duration::from_secs(1));
    tokio::pin!(late);
    while throttle.in_flight("in-flight-per-ip") != Some(connections) {
        tokio::select! {
            () = &mut late => panic!("{:?}", throttle.in_flight("in-flight-per-ip")),
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
    }
}

#[tokio::test]
async fn half_open_connections_lose_their_permits_and_living_ones_keep_them() {
    let throttle = throttle().unwrap();
    let address = serve_with(throttle.clone()).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(connect_half_open(address).await);
    }
    let mut living = connect(address, "ada").await;
    until_open(&throttle, 5).await;

    // It reads, so it answers pings.
    let reading = tokio::spawn(async move { while living.next().await.is_some() {} });
    tokio::time::pause();
    until_open(&throttle, 1).await;
    tokio::time::sleep(10 * SILENCE).await;
    assert_eq!(throttle.in_flight("in-flight-per-ip"), Some(1));
    assert!(!reading.is_finished());
}

#[tokio::test]
async fn client_that_does_not_listen_is_closed() {
    let mut socket = connect(start().await, "ada").await;
    let mut refused = 0;
    // A unit comes back each 200 ms, and a refused message takes far less.
    for _ in 0..1_000 {
        match say(&mut socket).await {
            Sent::Close(Some(frame)) => {
                assert_eq!(
                    (frame.code, frame.reason.as_str(), refused),
                    (CloseCode::Policy, "too many messages", 9)
                );
                return;
            }
            answer => refused = if is_refused(&answer) { refused + 1 } else { 0 },
        }
    }
    panic!("it was never closed");
}
