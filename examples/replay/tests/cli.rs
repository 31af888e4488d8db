//! What the program prints, and how it exits.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;

fn file(name: &str, text: impl AsRef<[u8]>) -> String {
    // Tests that run at the same time write the same file: each sees a whole one.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(name);
    let draft = folder.join(format!("draft-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    fs::write(&draft, text).unwrap();
    fs::rename(&draft, &path).unwrap();
    path.display().to_string()
}

/// The exit status, and what was printed.
fn replay(arguments: &[&str]) -> (i32, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_replay"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    (
        status.code().unwrap(),
        String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap(),
    )
}

fn rules(burst: u32) -> String {
    let text = format!(
        "version = 1\n[[limit]]\nname = \"per-ip\"\nby = \"client-ip\"\ngcra = {{ rate \
            = \"1/second\", burst = {burst} }}\n\
         [[limit]]\nname = \"all\"\nby = \"constant\"\nfixed-window = {{ rate = \"500/minute\" }}\n"
    );
    file(&format!("rules-{burst}.toml"), text)
}

fn line(address: &str, second: u32) -> String {
    format!(
        "{address} - - [10/Oct/2000:13:{:02}:{:02} +0000] \"GET / HTTP/1.1\" 200 1\n",
        second / 60,
        second % 60
    )
}

/// A log of ten clients, of which a smaller number asks more often.
fn log() -> String {
    let (mut random, mut log) = (7_u32, String::new());
    for request in 0..3_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        log += &line(
            &format!(
                "203.0.113.{}",
                (random >> 20) % 100 / 10 * ((random >> 28) % 2)
            ),
            request / 3,
        );
    }
    log
}

#[test]
fn check_shows_all_problems_and_exits_with_2() {
    let (code, shown) = replay(&[
        "check",
        &file("wrong.toml", "version = 2\nlimti = []\nlimit = []"),
    ]);
    assert_eq!((code, shown.matches(".toml:").count()), (2, 2), "{shown}");
    let named =
        "version = 1\n[[limit]]\nname = \"a\"\nby = \"api-key\"\ngcra = { rate = \"1/second\" }";
    let (code, shown) = replay(&["check", &file("named.toml", named)]);
    assert!(
        code == 0 && shown.contains("the program must register: key \"api-key\""),
        "{shown}"
    );
    assert_eq!(replay(&["check", "/no/such/file"]).0, 2);
}

#[test]
fn replay_shows_each_limit_and_its_keys_under_both_assumptions() {
    let log = line("203.0.113.7", 0)
        + &line("203.0.113.9", 0)
        + &line("203.0.113.9", 1)
        + "garbage \u{1b}[31m\n";
    let (code, shown) = replay(&["replay", &rules(1), &file("short.log", log)]);
    assert_eq!(code, 0, "{shown}");
    for part in [
        "3 requests from 2000-10-10T13:00:00Z to 2000-10-10T13:00:01Z",
        "lines that are undecided, and not counted: 1",
        "line 4: there is no time in [brackets]: garbage \\u{1b}[31m",
        "the log knows only seconds",
        "admits 2 to 3, refuses 0 to 1",
        "limit \"per-ip\": asked 3, would refuse 0 to 1, keys refused 0 to 1",
        "0 to 1  203.0.113.9",
        "limit \"all\": asked 3, would refuse 0, keys refused 0",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
}

#[test]
fn count_shows_how_a_log_is_read() {
    let log = file(
        "count.log",
        line("203.0.113.9", 0).repeat(1_000) + &line("host.example", 3_599 - 2_700) + "?\n",
    );
    let (code, shown) = replay(&["count", &log]);
    assert_eq!(code, 0, "{shown}");
    for part in [
        "       1,001  2000-10-10T13\n",
        "       1,001  200\n",
        "       1,000  203.0.113.9\n",
        "of 1 addresses",
        "names of hosts: 1",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
}

#[test]
fn log_without_requests_is_no_result() {
    for (name, text, part) in [
        ("empty.log", "", "is empty"),
        (
            "bad.log",
            "?\n",
            "gives no result: 1 of 1 lines are undecided",
        ),
    ] {
        let log = file(name, text);
        for arguments in [
            vec!["replay", &rules(3), &log],
            vec!["plan", &rules(3), &rules(3), &log],
            vec!["fit", &log],
        ] {
            let (code, shown) = replay(&arguments);
            assert!(code == 2 && shown.contains(part), "{arguments:?}: {shown}");
        }
    }
}

#[test]
fn plan_of_the_same_file_changes_nothing_and_a_tighter_one_fails() {
    let log = file("plan.log", log());
    let always = [
        "--fail-if",
        "newly-refused-keys > 0",
        "--fail-if",
        "newly-refused-requests > 0",
    ];
    let (old, new) = (rules(30), rules(2));
    let plan =
        |from: &str, to: &str| replay(&[&["plan", from, to, &log], always.as_slice()].concat());
    let (code, shown) = plan(&old, &old);
    for counted in [
        "newly-refused-requests",
        "newly-admitted-requests",
        "newly-refused-keys",
        "newly-admitted-keys",
    ] {
        assert!(
            code == 0 && shown.contains(&format!("{counted}: 0\n")),
            "{shown}"
        );
    }
    let (code, shown) = plan(&old, &new);
    assert!(
        code == 1 && shown.contains("fails: newly-refused-keys > 0"),
        "{shown}"
    );
    let (_, shown) = plan(&new, &old);
    assert!(
        shown.contains("newly-refused-keys: 0\n") && !shown.contains("newly-admitted-keys: 0\n"),
        "{shown}"
    );
}

#[test]
fn fit_writes_a_part_of_a_rule_file() {
    let log = file("fit.log", log());
    let (code, shown) = replay(&[
        "fit",
        &log,
        "--by",
        "ip",
        "--refuse-at-most",
        "0%",
        "--rates",
        "1/second,5/second",
    ]);
    let mut rules = "version = 1\n".to_owned();
    for line in shown.lines() {
        let _ = writeln!(
            rules,
            "{}",
            line.strip_prefix("# gcra = { rate = \"1/s")
                .map_or(line.to_owned(), |_| line[2..].to_owned())
        );
    }
    let fitted = file("fitted.toml", rules);
    assert_eq!((code, replay(&["check", &fitted]).0), (0, 0), "{shown}");
    // That limit would have refused no request.
    let (code, shown) = replay(&["replay", &fitted, &log]);
    assert!(
        code == 0 && shown.contains("admits 3,000, refuses 0"),
        "{shown}"
    );
}

#[test]
fn wrong_arguments_exit_with_2() {
    let log = file("arguments.log", line("203.0.113.9", 0));
    for arguments in [
        vec!["fit", &log, "--by", "api-key"],
        vec!["fit", &log, "--ip", ".client"],
        vec!["fit", &log, "--rates", "1/fortnight"],
        vec!["fit", "/no/such/log"],
        vec!["plan", "a", "b", &log, "--fail-if", "keys > 0"],
    ] {
        assert_eq!(replay(&arguments).0, 2, "{arguments:?}");
    }
}

#[test]
fn page_has_nothing_from_outside_and_no_markup_of_clients() {
    let user_agent =
        line("203.0.113.9", 0).trim().to_owned() + " \"-\" \"<script>alert(1)</script>\"\n";
    let log = file("page.log", log() + &user_agent.repeat(9));
    let by_agent = "version = 1\n[[limit]]\nname = \"agent\"\nby \
        = \"header:user-agent\"\non-missing = \"skip\"\n\
                    gcra = { rate = \"1/second\", burst = 2 }";
    let (old, new, page) = (
        rules(30),
        file("agent.toml", by_agent),
        file("page.html", ""),
    );
    for arguments in [
        vec!["replay", &new, &log, "--html", &page],
        vec!["plan", &old, &new, &log, "--html", &page],
        vec!["fit", &log, "--by", "header:user-agent", "--html", &page],
    ] {
        let (code, shown) = replay(&arguments);
        assert_eq!(code, 0, "{shown}");
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(
            text.contains("<svg") && text.contains("prefers-color-scheme: dark"),
            "{arguments:?}"
        );
        let outside = ["<script", "src=", "href=", "url(", "@import", "<link"];
        assert!(
            outside.iter().all(|part| !text.contains(part)),
            "{arguments:?}"
        );
        let is_shown = text.contains("&lt;script&gt;alert(1)");
        assert_eq!(is_shown, arguments[0] != "fit", "{arguments:?}");
    }
}

#[test]
fn readme_shows_what_the_program_prints() {
    let folder = |name: &str| format!("{}/{name}", env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(folder("README.md")).unwrap();
    let sessions = readme.split("```text\n$ cargo run -- ").skip(1);
    let mut shown = 0;
    for (command, printed) in
        sessions.filter_map(|session| session.split("```").next()?.split_once('\n'))
    {
        let Output { stdout, .. } = Command::new(env!("CARGO_BIN_EXE_replay"))
            .args(command.split(' '))
            .current_dir(folder(""))
            .output()
            .expect("the program starts");
        assert_eq!(String::from_utf8(stdout).unwrap(), printed, "{command}");
        shown += 1;
    }
    assert_eq!(shown, 2);
}

#[test]
fn json_lines_have_keys_costs_and_starts_of_their_own() {
    let rules = "version = 1\n[[limit]]\nname = \"tokens\"\nby = \
        [\"api-key\", \"header:x-tenant\"]\ncost = \"size\"\n\
                 gcra = { rate = \"1/second\", burst = 10 }\non-missing = \"skip\"";
    let request = |msec: &str, took: &str, fields: &str| {
        format!(
            "{{\"msec\":{msec},\"request_time\":{took},\"request_method\":\"GET\",\"uri\":\"/\",\"status\":200{fields}}}\n"
        )
    };
    // The last line was the first request, and finds all ten units.
    let log = request(
        "1700000003.5",
        "0.1",
        r#","key":"ada","tenant":"t","size":2"#,
    ) + &request("1700000003.5", "0.0", "")
        + &request(
            "1700000004.0",
            "4.0",
            r#","key":"ada","tenant":"t","size":10"#,
        );
    let (rules, log) = (file("tokens.toml", rules), file("tokens.log", log));
    let fields = [
        "--field",
        "api-key=.key",
        "--field",
        "header:X-Tenant=.tenant",
        "--field",
        "size=.size",
    ];
    let (code, shown) = replay(
        &[
            &["replay", &rules, &log, "--format", "nginx"],
            fields.as_slice(),
        ]
        .concat(),
    );
    assert_eq!(code, 0, "{shown}");
    assert!(
        shown.contains("put in order: 1\n") && !shown.contains("only seconds"),
        "{shown}"
    );
    assert!(
        shown.contains("admits 3, refuses 0")
            && shown.contains("\"tokens\": asked 2, would refuse 0"),
        "{shown}"
    );
    let (code, shown) = replay(&["replay", &rules, &log, "--format", "nginx"]);
    assert!(
        code == 2
            && shown.contains("limit \"tokens\" is skipped")
            && shown.contains("cost \"size\""),
        "{shown}"
    );
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// A rule file with one limit.
fn limit(name: &str, rest: &str) -> String {
    let text = format!("version = 1\n[[limit]]\nname = \"{name}\"\n{rest}\n");
    file(&format!("limit-{name}-{:x}.toml", rest.len()), text)
}

const KEY_GATE: [&str; 2] = ["--fail-if", "newly-refused-keys > 0"];

/// The results of all commands that give a verdict on a log.
fn verdicts(log: &str, options: &[&str]) -> Vec<(i32, String)> {
    let (old, new) = (rules(30), rules(2));
    let commands = [
        vec!["replay", &old, log],
        vec!["plan", &old, &new, log],
        vec!["plan", &old, &new, log, KEY_GATE[0], KEY_GATE[1]],
        vec!["fit", log],
    ];
    let each = commands.iter().map(|command| [command, options].concat());
    each.map(|command| replay(&command)).collect()
}

fn require_no_result(log: &str, options: &[&str], parts: &[&str]) {
    for (code, shown) in verdicts(log, options) {
        let has_all = parts.iter().all(|part| shown.contains(part));
        assert!(code == 2 && has_all, "{log}: {shown}");
        assert!(
            !shown.contains("newly-") && !shown.contains("[[limit]]"),
            "{shown}"
        );
    }
}

fn require_result(log: &str, options: &[&str]) {
    for (code, shown) in verdicts(log, options) {
        assert!(code != 2, "{log}: {shown}");
    }
}

/// A client that asks once in twenty seconds, in eleven files as logrotate names them: the newest
/// is `access.log`, then `.1`, and from `.2.gz` on they are compressed.
fn rotated(folder: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let now = SystemTime::now();
    for age in 0..=10_u32 {
        let hour = 22 - 2 * age;
        let lines: String = (0..360)
            .map(|request| {
                let second = request * 20;
                let (hour, minute) = (hour + second / 3_600, second / 60 % 60);
                format!(
                    "203.0.113.9 - - [20/Nov/2026:{hour:02}:{minute:02}:{:02} +0000] \"GET / HTTP/1.1\" 200 1\n",
                    second % 60
                )
            })
            .collect();
        let (name, bytes) = match age {
            0 => ("access.log".to_owned(), lines.into_bytes()),
            1 => ("access.log.1".to_owned(), lines.into_bytes()),
            _ => (format!("access.log.{age}.gz"), gzip(lines.as_bytes())),
        };
        let mut log = File::create(folder.join(name)).unwrap();
        log.write_all(&bytes).unwrap();
        log.set_modified(now - Duration::from_secs(7_200) * age)
            .unwrap();
    }
    folder
}

#[test]
fn rotated_logs_have_a_result_in_the_order_that_readme_names() {
    let readme = fs::read_to_string(format!("{}/README.md", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let commands: Vec<_> = readme
        .lines()
        .filter_map(|line| line.trim().split_once(" | cargo run -- fit -"))
        .map(|(command, _)| command)
        .collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    let folder = rotated("rotated");
    let fit = |command: &str| {
        let program = env!("CARGO_BIN_EXE_replay");
        let script = format!("{command} | '{program}' fit - --rates 1/second --window 1000");
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new("sh")
            .args(["-c", &script])
            .current_dir(&folder)
            .output()
            .unwrap();
        (
            status.code().unwrap(),
            String::from_utf8([stdout, stderr].concat()).unwrap(),
        )
    };
    for command in commands {
        let (code, shown) = fit(command);
        assert!(
            code == 0 && shown.contains("3,960 requests"),
            "{command}: {shown}"
        );
        assert!(
            shown.contains("gcra = { rate = \"1/second\", burst = 1 }"),
            "{shown}"
        );
        assert!(!shown.contains("put in order"), "{shown}");
    }
    let (code, shown) = fit("zcat -f access.log*");
    assert!(code == 2 && shown.contains("ls -tr"), "{shown}");
}

#[test]
fn late_lines_are_no_result() {
    let lines = |seconds: std::ops::Range<u32>| -> String {
        seconds.map(|second| line("203.0.113.9", second)).collect()
    };
    let newest_first = file("newest-first.log", lines(1_000..2_000) + &lines(0..1_000));
    require_no_result(
        &newest_first,
        &["--window", "100"],
        &[
            "1,000 of 2,000 lines",
            "100 lines earlier: 1,000",
            "ls -tr",
            "--window",
        ],
    );
    require_result(&newest_first, &["--window", "2000"]);
}

#[test]
fn one_line_in_a_thousand_may_be_undecided() {
    for (lines, undecided, is_result) in [
        (2_000, 2, true),
        (1_999, 2, false),
        (2_000, 3, false),
        (3, 1, true),
        (3, 2, false),
    ] {
        for (name, bad) in [
            ("unreadable", "?\n".to_owned()),
            ("host", line("host.example", 9)),
        ] {
            let mut log: String = (0..lines - undecided)
                .map(|n| line("203.0.113.9", 10 + n))
                .collect();
            log += &bad.repeat(usize::try_from(undecided).unwrap());
            let log = file(&format!("few-{name}-{lines}-{undecided}.log"), log);
            match is_result {
                true => require_result(&log, &[]),
                false => require_no_result(&log, &[], &["lines are undecided; one may be"]),
            }
        }
    }
}

#[test]
fn requests_without_the_address_that_a_limit_needs_are_no_result() {
    let log = file(
        "hosts.log",
        line("host.example", 0) + &line("host.example", 1) + &line("::1", 2),
    );
    require_no_result(
        &log,
        &[],
        &["2 of 3 lines", "line 1: there is no client address"],
    );
    let by_method = limit("method", "by = \"method\"\ngcra = { rate = \"1/second\" }");
    assert_eq!(replay(&["replay", &by_method, &log]).0, 0);
    let (code, shown) = replay(&["fit", &log, "--by", "method"]);
    assert!(code == 0 && shown.contains("without an address"), "{shown}");
}

#[test]
fn lines_of_no_request_are_decided() {
    let tls = line("203.0.113.9", 0).replace("GET / HTTP/1.1\" 200", "\\x16\\x03\\x01\" 400");
    let log = file("tls.log", tls.repeat(9) + &line("203.0.113.9", 1));
    require_result(&log, &[]);
    let (_, shown) = replay(&["count", &log]);
    assert!(shown.contains("which no limit sees: 9\n  line 1: the request is none"));
    let target = line("203.0.113.9", 0).replace("GET /", "GET /?<script>");
    let log = file("target.log", target.repeat(9) + &line("::1", 1));
    require_result(&log, &[]);
    let ok = file(
        "tls-200.log",
        tls.replace(" 400 ", " 200 ").repeat(9) + &line("::1", 1),
    );
    require_no_result(&ok, &[], &["9 of 10 lines", "the request is none"]);
}

#[test]
fn gzip_is_expanded_and_a_cut_file_is_no_result() {
    let text = log();
    let zipped = [
        gzip(&text.as_bytes()[..7_000]),
        gzip(&text.as_bytes()[7_000..]),
    ]
    .concat();
    let (plain, log) = (file("plain.log", &text), file("zipped.log.gz", &zipped));
    assert_eq!(replay(&["count", &log]), replay(&["count", &plain]));
    let cut = file("cut.log.gz", &zipped[..zipped.len() / 2]);
    require_no_result(&cut, &[], &["cut.log.gz cannot be read"]);
}

#[test]
fn what_is_no_log_is_no_result() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    require_no_result(folder, &[], &["cannot be read", "directory"]);
    require_no_result("/no/such.log", &[], &["cannot be read", "No such file"]);
    let noise: Vec<u8> = (0..100_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    require_no_result(&file("noise.log", noise), &[], &["lines are undecided"]);
    for (name, start, part) in [
        ("zstd", b"\x28\xb5\x2f\xfd\0".as_slice(), "zstdcat"),
        ("xz", b"\xfd7zXZ\0\0", "xzcat"),
        ("bz2", b"BZh9", "bzcat"),
        ("utf16", b"\xff\xfe2\0", "iconv"),
    ] {
        require_no_result(
            &file(&format!("log.{name}"), start),
            &[],
            &["looks like", part],
        );
    }
}

#[test]
fn lines_may_end_with_carriage_returns() {
    let text = log();
    let (plain, crlf) = (
        file("lf.log", &text),
        file("crlf.log", text.replace('\n', "\r\n")),
    );
    assert_eq!(
        replay(&["replay", &rules(2), &crlf]),
        replay(&["replay", &rules(2), &plain])
    );
}

const ALB: &str = "https 2018-07-02T22:23:00.186641Z app/lb/50dc6c495c0c9188 192.0.2.39:2817 10.0.0.1:80 \
    0.086 0.048 0.037 200 200 0 57 \"GET https://www.example.com:443/a?b HTTP/1.1\" \"curl/7.46.0\" \
    ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:x \"Root=1-5\" \"www.example.com\" \"-\" 1 \
    2018-07-02T22:22:48.364000Z \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \"200\" \"-\" \"-\"\n";
const CLOUDFRONT: &str = "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method \
    cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent)\n\
    2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.39\tGET\td1.cloudfront.net\t/a\t200\t-\tcurl\n";
const ENVOY: &str = "[2016-04-15T20:17:00.310Z] \"POST /api/v1/locations HTTP/2\" 204 - 154 0 226 100 \
    \"10.0.35.28\" \"nsq2http\" \"cc21d9b0\" \"locations\" \"tcp://10.0.2.1:80\"\n";
const CADDY: &str = r#"{"level":"info","ts":1700000000.25,"logger":"http.log.access","request":{"remote_ip":
    "192.0.2.39","method":"GET","host":"h","uri":"/a"},"duration":0.15,"status":200}"#;

#[test]
fn other_formats_are_named() {
    let caddy = CADDY.replace('\n', "") + "\n";
    for (name, text, format, part) in [
        ("alb", ALB, "combined", "AWS Application Load Balancer"),
        ("cloudfront", CLOUDFRONT, "combined", "CloudFront"),
        (
            "cloudfront-line",
            CLOUDFRONT.lines().last().unwrap(),
            "json",
            "CloudFront",
        ),
        ("envoy", ENVOY, "envoy", "Envoy's default text format"),
        ("caddy", &caddy, "combined", "--format caddy"),
        (
            "combined",
            &line("192.0.2.39", 0),
            "nginx",
            "--format combined",
        ),
        (
            "console",
            "2023/11/14 22:13:20.250\tINFO\thttp.log.access\thandled request\t{}\n",
            "caddy",
            "Caddy's console format",
        ),
    ] {
        let log = file(&format!("{name}.other.log"), text);
        require_no_result(&log, &["--format", format], &["looks like", part]);
    }
}

#[test]
fn commands_of_readme_convert_other_formats() {
    let readme = fs::read_to_string(format!("{}/README.md", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let commands: Vec<_> = readme
        .split("```sh\n")
        .skip(1)
        .filter_map(|block| block.split("```").next())
        .collect();
    assert_eq!(commands.len(), 2);
    for (name, command, text, start) in [
        ("alb", commands[0], ALB, "2018-07-02T22"),
        ("cloudfront", commands[1], CLOUDFRONT, "2019-12-04T21"),
    ] {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.log.gz"), gzip(text.as_bytes())).unwrap();
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(&folder)
            .output()
            .unwrap();
        let log = file(&format!("{name}.json"), output.stdout);
        let (code, shown) = replay(&["count", &log, "--format", "nginx"]);
        let has_all = [start, "192.0.2.39", "1  200"]
            .iter()
            .all(|part| shown.contains(part));
        assert!(code == 0 && has_all, "{shown}");
    }
}

#[test]
fn field_that_an_option_names_and_no_line_has_is_no_result() {
    let caddy = file("fields.log", CADDY.replace('\n', "") + "\n");
    let is_wrong = |option: &[&str], name: &str| {
        let options = [&["--format", "caddy"], option].concat();
        require_no_result(&caddy, &options, &[&format!("has the field {name:?}")]);
    };
    is_wrong(&["--field", "api-key=.kye"], "kye");
    is_wrong(&["--ip", ".client"], "client");
    is_wrong(&["--duration", "took"], "took");
    is_wrong(&["--host", "request"], "request");
    is_wrong(&["--route", "route"], "route");
    require_result(&caddy, &["--format", "caddy", "--field", "api-key=.logger"]);
}

#[test]
fn limits_that_apply_to_no_request_are_no_result() {
    let log = file("no-limit.log", line("203.0.113.9", 0));
    let rate = "gcra = { rate = \"1/second\" }";
    let typo = limit(
        "login",
        &format!("by = \"client-ip\"\n{rate}\nmatch = {{ paths = [\"/logni\"] }}"),
    );
    let skipped = limit("key", &format!("by = \"api-key\"\n{rate}"));
    for (rules, part) in [
        (&typo, "limit \"login\" matches none"),
        (&skipped, "limit \"key\" is skipped"),
    ] {
        for command in [
            vec!["replay", rules, &log],
            vec!["plan", rules, rules, &log],
        ] {
            let (code, shown) = replay(&command);
            assert!(code == 2 && shown.contains(part), "{shown}");
        }
    }
    // Another limit applies: the result says which one does not.
    let (code, shown) = replay(&["plan", &rules(2), &typo, &log]);
    assert!(
        code == 0 && shown.contains("limit \"login\" applies to no request"),
        "{shown}"
    );
}

#[test]
fn gate_has_no_result_for_changes_that_a_log_does_not_decide() {
    let log = file("gate.log", line("203.0.113.9", 0).repeat(3));
    let base = "version = 1\n[[limit]]\nname = \"per-ip\"\nby = \"client-ip\"\ngcra = { rate = \"9/second\" }\n";
    let with = |name: &str, rest: &str| file(&format!("gate-{name}.toml"), base.to_owned() + rest);
    let keyed = |burst: u32| {
        format!(
            "[[limit]]\nname = \"key\"\nby = \"api-key\"\ngcra = {{ rate = \"{burst}/second\" }}"
        )
    };
    let none = with("none", "");
    for (old, new, part) in [
        (
            with("key-9", &keyed(9)),
            with("key-1", &keyed(1)),
            "limit \"key\"",
        ),
        (none.clone(), with("new-key", &keyed(1)), "limit \"key\""),
        (
            with("wait", "wait-up-to = \"5s\""),
            none.clone(),
            "`wait-up-to` of \"per-ip\"",
        ),
        (
            none.clone(),
            with("preflight", "when = { not = \"preflight\" }"),
            "`when` of \"per-ip\"",
        ),
        (
            file("gate-when.toml", "when = \"external\"\n".to_owned() + base),
            none.clone(),
            "the layer's own `when`",
        ),
        (
            none.clone(),
            with(
                "proxy",
                "[client-ip]\nsource = \"x-forwarded-for\"\nhops = 1\n",
            ),
            "[client-ip]",
        ),
    ] {
        let (code, shown) = replay(&["plan", &old, &new, &log, KEY_GATE[0], KEY_GATE[1]]);
        assert!(
            code == 2 && shown.contains("--fail-if has no result") && shown.contains(part),
            "{shown}"
        );
        for file in [&old, &new] {
            let (code, shown) = replay(&["plan", file, file, &log, KEY_GATE[0], KEY_GATE[1]]);
            assert_eq!(code, 0, "{shown}");
        }
        assert_eq!(replay(&["plan", &old, &new, &log]).0, 0);
    }
}

#[test]
fn keys_are_newly_refusal_if_their_requests_are_refused_in_fact() {
    let log = file("in-fact.log", line("203.0.113.9", 0).repeat(5));
    let strict = "by = \"client-ip\"\ngcra = { rate = \"1/hour\" }\n";
    let open = "[[limit]]\nname = \"b\"\nby = \"client-ip\"\ngcra = { rate = \"99/second\" }\n";
    let of = |name: &str, compose: &str, mode: &str| {
        let text = format!("version = 1\n{compose}\n[[limit]]\nname = \"a\"\n{mode}{strict}{open}");
        file(&format!("in-fact-{name}.toml"), text)
    };
    let (audited, any) = (
        of("audit", "", "mode = \"audit\"\n"),
        of("any", "compose = [{ any = [\"a\", \"b\"] }]", ""),
    );
    let (all, none) = (of("all", "", ""), rules(9));
    // A request without the key is refused, and "(no key)" is its key.
    let agent = limit(
        "agent",
        "by = \"header:user-agent\"\ngcra = { rate = \"99/second\" }\non-missing = { reject = 401 }",
    );
    for (old, new, code) in [
        (&audited, &all, 1),
        (&any, &all, 1),
        (&all, &audited, 0),
        (&none, &audited, 0),
        (&none, &any, 0),
        (&none, &all, 1),
        (&none, &agent, 1),
    ] {
        let (status, shown) = replay(&["plan", old, new, &log, KEY_GATE[0], KEY_GATE[1]]);
        assert_eq!(status, code, "{old} {new}: {shown}");
    }
}

#[test]
fn costs_that_are_no_whole_numbers_are_undecided() {
    let rules = limit(
        "cost",
        "by = \"constant\"\ncost = \"tokens\"\ngcra = { rate = \"9/second\" }",
    );
    let request = |cost: &str| {
        format!(
            "{{\"msec\":1700000000.5,\"request_method\":\"GET\",\"uri\":\"/\",\"status\":200{cost}}}\n"
        )
    };
    let (of, without) = (
        |cost: &str| request(&format!(",\"cost\":{cost}")),
        request(""),
    );
    for (name, text, code) in [
        ("whole", of("3") + &without, 0),
        ("parts", of("1.5").repeat(2) + &of("3"), 2),
        ("text", of("\"1,000\"").repeat(2) + &of("3"), 2),
    ] {
        let log = file(&format!("cost-{name}.log"), text);
        let options = ["--format", "nginx", "--field", "tokens=.cost"];
        let (status, shown) = replay(&[&["replay", &rules, &log], options.as_slice()].concat());
        assert_eq!(status, code, "{shown}");
    }
}

#[test]
fn fit_of_requests_of_which_some_lack_the_key_leaves_them_unlimited() {
    let agent = line("203.0.113.9", 0).trim().to_owned() + " \"-\" \"curl\"\n";
    let log = file("some-keys.log", agent + &line("203.0.113.9", 0).repeat(9));
    let (code, shown) = replay(&[
        "fit",
        &log,
        "--by",
        "header:user-agent",
        "--rates",
        "1/second",
    ]);
    assert!(
        code == 0 && shown.contains("9 requests have no such key"),
        "{shown}"
    );
    let fitted = shown.replace("# gcra", "gcra");
    let fitted = file("some-keys.toml", "version = 1\n".to_owned() + &fitted);
    let (code, shown) = replay(&["replay", &fitted, &log]);
    assert!(
        code == 0 && shown.contains("admits 10, refuses 0"),
        "{shown}"
    );
}

#[test]
fn seconds_that_follow_finer_times_are_decided_under_both_assumptions() {
    let request = |at: &str| {
        format!(
            "{{\"msec\":{at},\"remote_addr\":\"::1\",\"request_method\":\"GET\",\"uri\":\"/\",\"status\":200}}\n"
        )
    };
    let log = request("1700000000.5") + &request("1700000009").repeat(4);
    let log = file("mixed.log", log);
    let rules = limit(
        "mixed",
        "by = \"client-ip\"\ngcra = { rate = \"4/second\", burst = 1 }",
    );
    let (code, shown) = replay(&["replay", &rules, &log, "--format", "nginx"]);
    assert!(code == 0 && shown.contains("refuses 0 to 3"), "{shown}");
    let (_, shown) = replay(&["fit", &log, "--format", "nginx", "--rates", "4/second"]);
    assert!(shown.contains("burst 1 to 4"), "{shown}");
}
