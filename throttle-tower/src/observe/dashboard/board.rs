use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use throttle_core::PolicyName;
use tokio::time::Instant;

use super::flows::{Flows, TEN, TenSecondCounts, second};
use super::rows::{LayerRows, LimitRow};
use super::tightest::Tightest;
use crate::lock::lock;
use crate::time::micros;
use crate::{LayerInfo, Offenders};

/// What the layers of a page do: two minutes by the second. A request adds to a few numbers, and
/// waits for nothing.
pub(super) struct Board {
    pub(super) started: Instant,
    pub(super) flows: Flows,
    pub(super) tightest: Tightest,
    pub(super) store: StoreBoard,
    /// No request locks it.
    pub(super) layers: Mutex<Layers>,
}

/// Decisions that had to be waited for.
#[derive(Default)]
pub(super) struct StoreBoard {
    pub(super) answers: TenSecondCounts,
    pub(super) failures: TenSecondCounts,
    pub(super) slowest_ms: TenSecondCounts,
}

#[derive(Default)]
pub(super) struct Layers {
    /// The versions that may be in use, oldest first.
    versions: Vec<Arc<LayerRows>>,
    /// Limits count on by their names.
    rows: HashMap<PolicyName, Arc<LimitRow>>,
    /// The last seconds in which limits were replaced, oldest first.
    changes: Vec<u32>,
}

impl Board {
    /// Digests of keys are those of `offenders`.
    pub(super) fn new(offenders: Offenders) -> Self {
        Self {
            started: Instant::now(),
            flows: Flows::default(),
            tightest: Tightest::new(offenders),
            store: StoreBoard::default(),
            layers: Mutex::default(),
        }
    }

    /// Adds a version of the limits of a layer, which may have replaced others.
    pub(super) fn add(&self, info: &LayerInfo, is_change: bool) -> Arc<LayerRows> {
        let second = self.moment().second();
        let Layers {
            versions,
            rows,
            changes,
        } = &mut *lock(&self.layers);
        versions.retain(|version| version.info.is_in_use());
        rows.retain(|_, row| Arc::strong_count(row) > 1);
        let names = info.limits().iter().map(|limit| &limit.name);
        let row = |name: &PolicyName| Arc::clone(rows.entry(name.clone()).or_default());
        let version = Arc::new(LayerRows {
            info: info.clone(),
            limits: names.map(row).collect(),
        });
        versions.push(Arc::clone(&version));
        // Layers of one rule file are replaced together.
        if is_change && changes.last() != Some(&second) {
            if changes.len() == CHANGES {
                changes.remove(0);
            }
            changes.push(second);
        }
        version
    }

    /// The versions in use, and whether there are any. If there are none, the latest.
    pub(super) fn versions(&self) -> (Vec<Arc<LayerRows>>, bool) {
        let Layers { versions, .. } = &*lock(&self.layers);
        let in_use = versions.iter().filter(|version| version.info.is_in_use());
        let in_use: Vec<_> = in_use.cloned().collect();
        match in_use.is_empty() {
            true => (versions.last().cloned().into_iter().collect(), false),
            false => (in_use, true),
        }
    }

    /// The seconds in which limits were replaced, newest first.
    pub(super) fn changes(&self) -> Vec<u32> {
        lock(&self.layers).changes.iter().rev().copied().collect()
    }

    pub(super) fn moment(&self) -> Moment {
        let since = self.started.elapsed();
        Moment {
            micros: micros(since),
            running: since.as_secs(),
        }
    }
}

/// Most changes that are listed.
const CHANGES: usize = 20;

/// When something happens, in the units of the board.
pub(super) struct Moment {
    /// Since the start.
    pub(super) micros: u64,
    /// Whole seconds since the start.
    pub(super) running: u64,
}

impl Moment {
    pub(super) fn second(&self) -> u32 {
        second(self.running)
    }

    /// The number of the running ten seconds.
    pub(super) fn ten_seconds(&self) -> u32 {
        self.second() / TEN
    }

    /// The last complete seconds since the start, at most 120.
    pub(super) fn seconds(&self) -> impl Iterator<Item = u32> + Clone + use<> {
        let complete = u32::try_from(self.running).map_or(SHOWN, |running| running.min(SHOWN));
        self.second() - complete..self.second()
    }

    /// How many seconds ago a second began.
    pub(super) fn since(&self, second: u32) -> u32 {
        self.second().saturating_sub(second)
    }

    /// What a count has come to in the last two minutes.
    pub(super) fn sum(&self, recent: &TenSecondCounts) -> u64 {
        self.tens().map(|ten| u64::from(recent.get(ten))).sum()
    }

    /// The highest of the last two minutes.
    pub(super) fn most(&self, recent: &TenSecondCounts) -> u32 {
        self.tens().map(|ten| recent.get(ten)).max().unwrap_or(0)
    }

    /// The running ten seconds, and those that make two minutes before them.
    fn tens(&self) -> impl Iterator<Item = u32> + use<> {
        self.ten_seconds() - SHOWN / TEN..=self.ten_seconds()
    }
}

const SHOWN: u32 = 120;
