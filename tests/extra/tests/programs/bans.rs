//! Bans are as long as those of fail2ban, by its own code.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use throttle_tower::limit::Ban;

/// Prints the length of a ban for each line with a base, a maximum and the number of bans before.
const FAIL2BAN: &str = r#"
import sys
from fail2ban.server.jail import Jail
from fail2ban.server.observer import ObserverThread

observer = ObserverThread()
for line in sys.stdin.read().splitlines():
    base, longest, before = map(int, line.split())
    jail = Jail("bans", backend=None)
    jail.setBanTimeExtra("increment", "true")
    jail.setBanTimeExtra("maxtime", str(longest))
    print(observer.calcBanTime(jail, base, before))
"#;

#[test]
fn a_thousand_bans_are_as_long_as_those_of_fail2ban() {
    let mut seed = 1_u64;
    // At most so many bits.
    let mut random = |bits: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % (1 << bits)
    };
    let cases: Vec<(u64, u64, u8)> = (0..1_000)
        .map(|_| {
            let (bits, more) = (random(4), random(5).min(28));
            let base = 1 + random(1 + bits);
            (base, base + random(more), random(5) as u8)
        })
        .collect();
    // Debian's Python has Debian's package.
    let mut python = Command::new("/usr/bin/python3");
    let piped = python
        .args(["-c", FAIL2BAN])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = piped.spawn().unwrap();
    let lines: String = cases
        .iter()
        .map(|(base, most, before)| format!("{base} {most} {before}\n"))
        .collect();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let theirs: Vec<u64> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    let ours = cases.iter().map(|(base, most, before)| {
        let ban = Ban::after(5)
            .growing(2)
            .lasting(Duration::from_secs(*base))
            .up_to(Duration::from_secs(*most));
        ban.length(*before).as_secs()
    });
    assert_eq!(theirs.len(), 1_000, "fail2ban has failed");
    for (case, (theirs, ours)) in cases.iter().zip(theirs.iter().zip(ours)) {
        assert_eq!((case, *theirs), (case, ours));
    }
}
