//! What the program prints, and how it exits.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn file(name: &str, text: impl AsRef<[u8]>) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
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
        "lines that could not be read, and are not counted: 1",
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
        ("bad.log", "?\n", "has no request that could be read, in 1"),
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
    let (_, shown) = replay(&["replay", &rules, &log, "--format", "nginx"]);
    assert!(
        shown.contains("limit \"tokens\": skipped") && shown.contains("cost \"size\""),
        "{shown}"
    );
}
