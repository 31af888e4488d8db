//! The page of the example, in a real browser.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use throttle_extra::browser::{self, Browser};
use throttle_extra::child;
use throttle_extra::example::{self, Example};
use throttle_extra::web;
use throttle_test_servers::Server;

const PATIENCE: Duration = Duration::from_secs(20);
const TAB: char = '\u{e004}';

/// The example at a port, with its load, and its page in a browser.
async fn open(port: u16) -> (Example, Browser, String) {
    let example = Example::start(&["--port", &port.to_string()], &[]);
    let (browser, page) = (Browser::start().await, format!("{}/throttle", example.url));
    browser.open(&page).await;
    wait_for_state(&browser, "live").await;
    (example, browser, page)
}

async fn wait_for_state(browser: &Browser, wanted: &str) -> String {
    web::until(PATIENCE, wanted, async || {
        let state = browser
            .run(
                "const state = document.getElementById('state'); return [state.dataset.state, \
                state.textContent];",
            )
            .await;
        if state[0] == wanted {
            Ok(state[1].as_str().unwrap().to_owned())
        } else {
            Err(state.to_string())
        }
    })
    .await
}

/// What the page shows and what `data.json` says, read at the same moment.
const BOTH: &str = "
    const data = await (await fetch('/throttle/data.json', { cache: 'no-store' })).json();
    const text = id => document.getElementById(id).textContent;
    const rows = id => [...document.getElementById(id).rows].map(row => [...row.cells].map(cell \
    => cell.textContent));
    return {
        data,
        shown: {
            admitted: text('admitted'), refused: text('refused'), binding: text('binding'), \
            since: text('since'),
            service: text('service'), tightest: rows('tightest'),
            policies: rows('policies'), permits: rows('permits'), offenders: \
            rows('offenders').length,
            candidates: rows('candidates'),
            charts: document.querySelectorAll('#charts figure').length,
        },
    };";

/// 1234 as `1,234`.
fn number(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|three| str::from_utf8(three).unwrap())
        .collect();
    groups.join(",")
}

fn sum(list: &Value) -> u64 {
    list.as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .sum()
}

fn last(list: &Value) -> u64 {
    list.as_array()
        .unwrap()
        .last()
        .and_then(Value::as_u64)
        .unwrap_or(0)
}

/// Compares each number of the page with the data. The error names the first that differs.
fn equal(both: &Value) -> Result<u64, String> {
    let (data, shown) = (&both["data"], &both["shown"]);
    let same = |what: &str, shown: &Value, wanted: String| match shown.as_str() {
        Some(shown) if shown == wanted => Ok(()),
        _ => Err(format!(
            "{what}: the page shows {shown}, the data say {wanted}"
        )),
    };
    let requests: u64 = data["outcomes"]
        .as_object()
        .unwrap()
        .values()
        .map(|n| n.as_u64().unwrap())
        .sum();
    let since = shown["since"].as_str().unwrap();
    if !since.contains(&format!("{} requests since", number(requests))) {
        return Err(format!("{since:?} of {requests} requests"));
    }
    same(
        "admitted",
        &shown["admitted"],
        number(last(&data["requests"]["admitted"])),
    )?;
    same(
        "refused",
        &shown["refused"],
        number(last(&data["requests"]["refused"])),
    )?;
    same(
        "binding",
        &shown["binding"],
        data["binding"].as_str().unwrap_or("None").to_owned(),
    )?;
    assert!(
        shown["service"].as_str().unwrap().starts_with("127.0.0.1:"),
        "the host: {}",
        shown["service"]
    );
    for (key, row) in data["tightest"]
        .as_array()
        .unwrap()
        .iter()
        .zip(shown["tightest"].as_array().unwrap())
    {
        let [left, of] = ["left", "of"].map(|field| key[field].as_u64().unwrap());
        let end = if left == 0 { ", used up" } else { "" };
        same(
            "what is left",
            &row[1],
            format!("{} of {}{end}", number(left), number(of)),
        )?;
    }
    let policies = data["policies"].as_array().unwrap();
    for (policy, row) in policies.iter().zip(shown["policies"].as_array().unwrap()) {
        assert!(
            row[0]
                .as_str()
                .unwrap()
                .starts_with(policy["name"].as_str().unwrap()),
            "{row}"
        );
        same(
            "admitted by a policy",
            &row[1],
            number(sum(&policy["admitted"])),
        )?;
        same(
            "refused by a policy",
            &row[2],
            number(sum(&policy["refused"])),
        )?;
    }
    for (permits, row) in data["permits"]
        .as_array()
        .unwrap()
        .iter()
        .zip(shown["permits"].as_array().unwrap())
    {
        same(
            "name of permits",
            &row[0],
            permits["name"].as_str().unwrap().to_owned(),
        )?;
        for (cell, field) in [(1, "taken"), (2, "most_taken"), (3, "refused")] {
            same(field, &row[cell], number(permits[field].as_u64().unwrap()))?;
        }
    }
    let (candidate, results) = (
        &data["candidates"][0],
        shown["candidates"].as_array().unwrap(),
    );
    for (row, field) in results.iter().zip([
        "both_admit",
        "both_refuse",
        "would_refuse",
        "would_admit",
        "not_decided",
    ]) {
        same(
            "a result",
            &row[0],
            format!("half-per-ip: {}", field.replace('_', " ")),
        )?;
        same(field, &row[1], number(candidate[field].as_u64().unwrap()))?;
    }
    let counts = [
        ("charts", policies.len() + 1),
        ("offenders", data["offenders"].as_array().unwrap().len()),
    ];
    assert_eq!(results.len(), 5);
    for (what, wanted) in counts {
        if shown[what] != wanted {
            return Err(format!("{} {what}, not {wanted}", shown[what]));
        }
    }
    assert_eq!(shown["policies"].as_array().unwrap().len(), policies.len());
    Ok(requests)
}

#[tokio::test]
async fn numbers_change_and_equal_the_data_and_nothing_comes_from_elsewhere() {
    let (example, browser, page) = open(child::free_port()).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        // The page shows a second a moment after the data do.
        let requests = web::until(PATIENCE, "equal numbers", async || {
            equal(&browser.run(BOTH).await)
        })
        .await;
        assert!(
            seen.last() < Some(&requests),
            "{requests} requests after {seen:?}"
        );
        seen.push(requests);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
    assert!(seen[0] > 0);

    let console = browser.log("browser").await;
    assert!(console.is_empty(), "{console:?}");
    let requests = browser.requests().await;
    let inside = |url: &&String| url.starts_with(&page) || url.starts_with("data:");
    let outside: Vec<&String> = requests
        .iter()
        .filter(|url| !inside(url) && *url != "about:blank")
        .collect();
    assert!(outside.is_empty(), "{outside:?}");
    assert!(
        requests.iter().any(|url| url.ends_with("/throttle/events")),
        "{requests:?}"
    );
    let script = "return performance.getEntriesByType('resource').map(entry => new \
        URL(entry.name).origin);";
    for origin in browser.run(script).await.as_array().unwrap() {
        assert!(
            *origin == example.url.as_str() || *origin == "null",
            "{origin}"
        );
    }

    browser.quit().await;
    if std::env::var_os("THROTTLE_SCREENSHOT").is_some_and(|wanted| wanted == "1") {
        save_picture().await;
    }
}

/// Saves the picture that the README of the example shows: two minutes of load, and a Redis that is
/// away for a moment.
async fn save_picture() {
    let redis = Server::start();
    let example = Example::start(&["--port", "0"], &[("REDIS_URL", &redis.url())]);
    let browser = Browser::start().await;
    browser.emulate(1280, 1000, "light").await;
    browser.open(&format!("{}/throttle", example.url)).await;
    tokio::time::sleep(Duration::from_secs(80)).await;
    redis.kill();
    tokio::time::sleep(Duration::from_secs(6)).await;
    redis.restart();
    tokio::time::sleep(Duration::from_secs(40)).await;
    browser
        .save_picture(&example::source().join("page.png"))
        .await;
    browser.quit().await;
}

#[tokio::test]
async fn tab_reaches_every_control_in_order() {
    let (_example, browser, _) = open(child::free_port()).await;
    web::until(PATIENCE, "numbers", async || {
        equal(&browser.run(BOTH).await)
    })
    .await;
    const NAME: &str =
        "const name = node => `${node.tagName}#${node.id} ${node.textContent.trim()}`;";
    let controls = "return [...document.querySelectorAll('a[href], button, input, select, \
        summary, [tabindex=\"0\"]')]
        .filter(node => !node.disabled).map(name);";
    let controls = browser.run(&format!("{NAME}{controls}")).await;
    let controls = controls.as_array().unwrap();
    assert!(controls.len() >= 3, "{controls:?}");

    let mut reached = Vec::new();
    for _ in controls {
        browser.press(TAB).await;
        let focus = "const node = document.activeElement, style = getComputedStyle(node), box = \
                node.getBoundingClientRect();
            return [name(node), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) \
            >= 2,
                box.width > 0 && box.left >= 0 && box.right <= innerWidth && box.bottom > 0 && \
                box.top < innerHeight];";
        let focus = browser.run(&format!("{NAME}{focus}")).await;
        assert!(
            focus[1] == true && focus[2] == true,
            "the focus is visible: {focus}"
        );
        reached.push(focus[0].clone());
    }
    assert_eq!(&reached, controls);
    // A control that is reached by a key works by a key.
    browser
        .run("document.getElementById('pause').focus();")
        .await;
    browser.press(' ').await;
    assert!(wait_for_state(&browser, "wait").await.starts_with("Paused"));
    browser.press(' ').await;
    wait_for_state(&browser, "live").await;
    browser.quit().await;
}

#[tokio::test]
async fn narrow_window_scrolls_one_way_and_both_color_schemes_are_legible() {
    let (_example, browser, _) = open(child::free_port()).await;
    web::until(PATIENCE, "numbers", async || {
        equal(&browser.run(BOTH).await)
    })
    .await;
    let mut grounds = BTreeSet::new();
    for scheme in ["light", "dark"] {
        for width in [400, 1280] {
            browser.emulate(width, 900, scheme).await;
            let found = browser.run(browser::LEGIBLE).await;
            assert_eq!(found["inner"], width, "{found}");
            assert!(
                found["width"].as_u64() <= Some(width.into()),
                "{scheme}, {width}: {found}"
            );
            assert!(found["worst"][0].as_f64() >= Some(4.5), "{scheme}: {found}");
            grounds.insert(found["ground"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(grounds.len(), 2, "{grounds:?}");
    browser.quit().await;
}

#[tokio::test]
async fn page_says_that_it_reconnects_and_goes_on_with_the_next_server() {
    let port = child::free_port();
    let (example, browser, _) = open(port).await;
    let before = web::until(PATIENCE, "numbers", async || {
        equal(&browser.run(BOTH).await)
    })
    .await;
    assert!(before > 0);
    tokio::time::sleep(Duration::from_secs(3)).await;
    drop(example);
    let said = wait_for_state(&browser, "lost").await;
    assert!(said.contains("Reconnecting"), "{said}");

    let _example = Example::start(&["--port", &port.to_string()], &[]);
    wait_for_state(&browser, "live").await;
    let first = web::until(PATIENCE, "numbers", async || {
        equal(&browser.run(BOTH).await)
    })
    .await;
    let since = browser
        .run("return document.getElementById('since').textContent;")
        .await;
    assert!(since.as_str().unwrap().contains("restarted"), "{since}");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let second = web::until(PATIENCE, "numbers", async || {
        equal(&browser.run(BOTH).await)
    })
    .await;
    assert!(second > first, "{second} after {first}");
    // While the server is away, the browser itself says that it cannot be reached. The script says
    // nothing.
    for message in browser.log("browser").await {
        let text = message["message"].as_str().unwrap();
        assert!(
            text.contains("/throttle/events") && text.contains("net::ERR_"),
            "{message}"
        );
    }
    browser.quit().await;
}
