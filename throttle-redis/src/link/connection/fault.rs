use std::error::Error;
use std::fmt;

/// Why a command has no answer.
///
/// ```
/// use throttle_redis::{Fault, FaultKind};
///
/// assert!(Fault::new(FaultKind::NotSent, "there is no connection").did_not_run());
/// assert!(!Fault::new(FaultKind::Lost, "the connection broke").did_not_run());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    kind: FaultKind,
    message: String,
}

/// What is known about a command without an answer, above all whether it ran.
///
/// ```
/// use throttle_redis::{Fault, FaultKind};
///
/// assert_eq!(Fault::new(FaultKind::NoScript, "NOSCRIPT").kind(), &FaultKind::NoScript);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// It was never sent: there is no connection, or the connection has no credentials.
    NotSent,
    /// It was sent, perhaps, and the connection broke. Whether it ran is not known.
    Lost,
    /// The server does not have the script. The command did not run.
    NoScript,
    /// The slot is at another server, at this address if the server named it. The command did not
    /// run.
    Moved(Option<(String, u16)>),
    /// The slot is being migrated to another server. The command did not run.
    Ask(Option<(String, u16)>),
    /// The server cannot run the command for the moment: it is loading its data or running a
    /// script, or its cluster is down. The command did not run.
    NotNow,
    /// The server cannot run the command for the moment because of its slot alone: the slot's keys
    /// are on both sides of a migration, or no server has the slot. The command did not run.
    SlotNotNow,
    /// The server is a replica. The command did not run, or its script wrote nothing.
    ReadOnly,
    /// The server is out of memory and refuses to write. The command did not run, or its script
    /// wrote nothing.
    OutOfMemory,
    /// The server refused the command, or a command of its script: credentials, permissions,
    /// too few replicas, no disk, a command that it does not know. The command did not run, or its
    /// script wrote nothing.
    Refused,
    /// A script failed while it ran. Whether it wrote anything is not known.
    Script,
    /// Any other error of the server, or an answer that could not be read. Whether it ran is not
    /// known.
    Other,
}

impl Fault {
    /// Creates a fault. The message must not contain a key.
    #[must_use]
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// What is known.
    #[must_use]
    pub const fn kind(&self) -> &FaultKind {
        &self.kind
    }

    /// The same, with the address of the server that it is about.
    pub(crate) fn of(self, server: impl fmt::Display) -> Self {
        let message = format!("{server}: {}", self.message);
        Self { message, ..self }
    }

    /// Whether the slot is elsewhere, or moving, or nowhere.
    pub(crate) const fn is_about_a_slot(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::Moved(_) | FaultKind::Ask(_) | FaultKind::SlotNotNow
        )
    }

    /// Whether the server is healthy: it would run the command elsewhere or later, or it ran the
    /// command and a key held nonsense.
    pub(crate) const fn is_a_sign_of_life(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::NoScript | FaultKind::NotNow | FaultKind::Script
        ) || self.is_about_a_slot()
    }

    /// Whether the server answered that it does not do what a decision needs, whatever the key.
    pub(crate) const fn is_a_refusal(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::ReadOnly | FaultKind::OutOfMemory | FaultKind::Refused
        )
    }

    /// Whether the command is known not to have run.
    #[must_use]
    pub const fn did_not_run(&self) -> bool {
        !matches!(
            self.kind,
            FaultKind::Lost | FaultKind::Script | FaultKind::Other
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: FaultKind) -> Fault {
        Fault::new(kind, "")
    }

    #[test]
    fn a_server_that_would_run_the_command_elsewhere_or_later_is_alive() {
        use FaultKind::{
            Ask, Lost, Moved, NoScript, NotNow, NotSent, Other, OutOfMemory, ReadOnly, Refused,
            Script, SlotNotNow,
        };

        for (kind, alive) in [
            (NoScript, true),
            (Moved(None), true),
            (Ask(None), true),
            (NotNow, true),
            (SlotNotNow, true),
            (Script, true),
            (NotSent, false),
            (Lost, false),
            (ReadOnly, false),
            (OutOfMemory, false),
            (Refused, false),
            (Other, false),
        ] {
            assert_eq!(fault(kind.clone()).is_a_sign_of_life(), alive, "{kind:?}");
        }
    }

    #[test]
    fn only_what_was_lost_or_failed_while_it_ran_may_have_run() {
        use FaultKind::{
            Ask, Lost, Moved, NoScript, NotNow, NotSent, Other, OutOfMemory, ReadOnly, Refused,
            Script, SlotNotNow,
        };

        for kind in [
            NotSent,
            NoScript,
            Moved(None),
            Ask(None),
            NotNow,
            SlotNotNow,
            ReadOnly,
            OutOfMemory,
            Refused,
        ] {
            assert!(fault(kind.clone()).did_not_run(), "{kind:?}");
        }
        for kind in [Lost, Script, Other] {
            assert!(!fault(kind.clone()).did_not_run(), "{kind:?}");
        }
        let told = Fault::new(Lost, "the cable");
        assert_eq!(
            (told.to_string().as_str(), told.kind()),
            ("the cable", &Lost)
        );
        assert!(told.source().is_none());
    }
}
