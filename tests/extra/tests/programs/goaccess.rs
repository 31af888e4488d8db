//! `examples/replay` reads a log as GoAccess does: a million lines, by address, status and hour.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;
use throttle_extra::child;

const LINES: u64 = 1_000_000;

/// A day of requests, by some 14,000 addresses of both families.
fn log() -> String {
    let (mut state, mut log) = (7_u64, String::new());
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for line in 0..LINES {
        let second = line * 86_400 / LINES;
        let address = match random(5) {
            0 => format!("2001:db8::{:x}", random(4_000) + 1),
            _ => format!("203.0.{}.{}", random(40), random(250) + 1),
        };
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let method = ["GET", "POST"][random(2) as usize];
        let path = ["/", "/login", "/a?b=1", "/reports/7"][random(4) as usize];
        let status = [200, 200, 200, 304, 404, 401, 500, 429][random(8) as usize];
        let _ = writeln!(
            log,
            "{address} - - [20/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] \"{method} {path} HTTP/1.1\" {status} \
             {} \"-\" \"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\"",
            random(9_000)
        );
    }
    log
}

type Hits = BTreeMap<String, u64>;

/// By the hour of the day, by status and by address.
fn of_goaccess(log: &Path, report: &Path) -> [Hits; 3] {
    let mut goaccess = Command::new(child::program("goaccess"));
    let output = goaccess.arg(log).args([
        "--log-format=COMBINED",
        "--max-items=100000",
        "--no-progress",
        "-o",
    ]);
    let output = output.arg(report).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let rows = |rows: &Value| -> Hits {
        let row = |row: &Value| {
            // `404 - Not Found: …`
            let name = row["data"]
                .as_str()
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .to_owned();
            (name, row["hits"]["count"].as_u64().unwrap())
        };
        rows.as_array().unwrap().iter().map(row).collect()
    };
    let statuses = report["status_codes"]["data"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|class| rows(&class["items"]));
    [
        rows(&report["visit_time"]["data"]),
        statuses.collect(),
        rows(&report["hosts"]["data"]),
    ]
}

fn of_replay(log: &Path) -> [Hits; 3] {
    let program = env::var_os("THROTTLE_EXAMPLE_REPLAY").map(PathBuf::from);
    let program = program.expect(
        "THROTTLE_EXAMPLE_REPLAY names the program; `sh tests/extra.sh` \
        builds it",
    );
    let output = Command::new(program)
        .arg("count")
        .arg(log)
        .args(["--top", "100000"])
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let mut tables = output.split("\n\n").skip(1).map(|table| {
        let rows = table
            .lines()
            .skip(1)
            .filter_map(|row| row.trim().split_once("  "));
        rows.map(|(count, name)| (name.to_owned(), count.replace(',', "").parse().unwrap()))
            .collect::<Hits>()
    });
    let [hours, statuses, addresses] =
        std::array::from_fn(|_| tables.next().unwrap_or_else(|| panic!("{output}")));
    // `2026-11-20T09`
    let of_day =
        |(hour, count): (String, u64)| (hour.rsplit_once('T').unwrap().1.to_owned(), count);
    [hours.into_iter().map(of_day).collect(), statuses, addresses]
}

#[test]
fn log_is_read_as_goaccess_reads_it() {
    let folder = child::folder();
    let path = folder.join("access.log");
    fs::write(&path, log()).unwrap();
    let [replay, goaccess] = [
        of_replay(&path),
        of_goaccess(&path, &folder.join("report.json")),
    ];
    fs::remove_dir_all(folder).unwrap();
    for (replay, goaccess) in replay.iter().zip(&goaccess) {
        assert_eq!(replay.values().sum::<u64>(), LINES);
        assert_eq!(replay, goaccess);
    }
    assert!(goaccess[0].len() == 24 && goaccess[1].len() == 6 && goaccess[2].len() > 10_000);
}
