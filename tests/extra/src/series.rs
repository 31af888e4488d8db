//! Reads the text that a server has under `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

/// Values by series. A series is written `name{label="value",…}`, with its labels in alphabetical
/// order.
#[derive(Clone, Debug, PartialEq)]
pub struct Series(BTreeMap<String, f64>);

impl Series {
    pub fn read(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(lines.map(read_line).collect())
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// The value of one series; 0 if there is none.
    pub fn get(&self, series: &str) -> u64 {
        self.0.get(series).map_or(0, |value| whole(*value))
    }

    /// The sum of all series of a name that have these labels.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let of_name = self
            .0
            .iter()
            .filter(|(series, _)| series.split('{').next() == Some(name));
        let has = |series: &str, (label, value): &(&str, &str)| {
            series.contains(&format!("{label}={value:?}"))
        };
        let mut found = of_name
            .filter(|(series, _)| labels.iter().all(|label| has(series, label)))
            .peekable();
        assert!(
            found.peek().is_some(),
            "there is no series {name} with {labels:?}"
        );
        found.map(|(_, value)| whole(*value)).sum()
    }
}

fn whole(value: f64) -> u64 {
    assert!(
        value >= 0.0 && value.fract() == 0.0,
        "{value} is not a count"
    );
    value as u64
}

fn read_line(line: &str) -> (String, f64) {
    let (series, value) = line
        .rsplit_once(' ')
        .unwrap_or_else(|| panic!("{line:?} has no value"));
    let value = value
        .parse()
        .unwrap_or_else(|error| panic!("{line:?}: {error}"));
    let Some((name, labels)) = series.split_once('{') else {
        return (series.to_owned(), value);
    };
    // No label of these metrics has a comma or a quote in its value; what breaks this breaks the
    // tests.
    let mut labels: Vec<&str> = labels.trim_end_matches('}').split(',').collect();
    labels.sort_unstable();
    (format!("{name}{{{}}}", labels.join(",")), value)
}

#[test]
fn series_are_read_with_their_labels_in_order() {
    let series = Series::read("# TYPE a counter\na{z=\"1\",b=\"2\"} 3\na{b=\"3\"} 4\n\nb 1\n");
    assert_eq!(series.get("a{b=\"2\",z=\"1\"}"), 3);
    assert_eq!(
        (
            series.sum("a", &[]),
            series.sum("a", &[("b", "3")]),
            series.get("b")
        ),
        (7, 4, 1)
    );
}
