//! States as bytes, for backends that keep them in another process.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::dispatch::Visitor;
use super::exception::Exception;
use super::kind::Algorithm;
use super::state::State;
use super::stored::{Repr, StateFormat};
use super::wire::{Numbers, Wire, double, read, write};

impl Algorithm {
    /// The bytes that identify these parameters: two bytes for the algorithm and its variant, then
    /// the parameters, each a double, little endian.
    ///
    /// | algorithm | bytes | parameters | numbers of a [state](State::to_wire) |
    /// |---|---|---|---|
    /// | `gcra` | `g0` | p, q, depth | the theoretical arrival time: whole µs, and p-ths of one |
    /// | `token_bucket` | `t0` | p, q, depth | the time of the last charge, grains left |
    /// | `leaky_meter` | `m0` | p, q, depth | the time of the last charge, grains owed |
    /// | `leaky_bucket` | `q0`, without delay `q1` | p, q, depth | the time of the last charge, then the next free slot as for `gcra` |
    /// | `interval_bucket` | `i0`, aligned `i1`, rolling quota `i2` | capacity, refill, interval | the start of the running interval, tokens left |
    /// | `fixed_window` | `f0` | limit, length, offset | the start of the window, units used |
    /// | `calendar_quota` | day `cd`, week `cw`, month `cm` | limit, how far the quota's clock is ahead of UTC | the start of the window, units used |
    /// | `sliding_window` | `s0` | limit, length of a sub-window, number S of them | the time of the last charge, then S + 1 counters; sub-window n, counted from the epoch, has the place n modulo (S + 1) |
    /// | `sliding_log` | `l0` | limit, window | the sum of units, then a time and units for each run, oldest first |
    ///
    /// Times are in µs. Amounts are counted in grains: a unit is q grains, p grains drain each µs,
    /// and a key owes at most `depth` grains. p/q is the rate in lowest terms.
    #[must_use]
    pub fn tag(&self) -> Vec<u8> {
        struct Tag;
        impl Visitor for Tag {
            type Output = Vec<u8>;
            fn visit<A: Wire<State: StateFormat>>(self, algorithm: &A) -> Vec<u8> {
                let mut tag = algorithm.kind().to_vec();
                write(&mut tag, &algorithm.parameters());
                tag
            }
        }
        self.accept(Tag)
    }
}

impl State {
    /// The state as bytes: the [tag](Algorithm::tag) of the algorithm that wrote it, which is the
    /// given one unless the state names another; then the numbers in its table, each a double,
    /// little endian.
    ///
    /// Before all of them stand the bytes of an [exception](Exception::to_wire), if there is one.
    ///
    /// Nothing if an algorithm that the state does not name made it.
    #[must_use]
    pub fn to_wire(&self, algorithm: &Algorithm) -> Option<Vec<u8>> {
        let by = self.writer.as_deref().unwrap_or(algorithm);
        let (mut bytes, repr) = match &self.repr {
            Repr::Excepted(exception, beneath) => (exception.to_wire(), &**beneath),
            repr => (Vec::new(), repr),
        };
        bytes.extend(by.tag());
        write(&mut bytes, &by.accept(ReadNumbers(repr))?);
        Some(bytes)
    }

    /// Reads a state from its bytes. `algorithm` is tried first; the state names its parameters if
    /// others wrote it. `None` if the bytes are no state. Any bytes may be passed.
    #[must_use]
    pub fn from_wire(algorithm: &Algorithm, bytes: &[u8]) -> Option<Self> {
        if let Some(numbers) = algorithm.accept(BehindTag(bytes)) {
            return Some(Self::of(algorithm.accept(ReadState(&read(numbers)?))?));
        }
        if let Some((exception, beneath)) = Exception::from_wire(bytes) {
            // One exception stands over a state, and none over an exception.
            let is_plain = !beneath.starts_with(b"x");
            let state = if beneath.is_empty() {
                algorithm.fresh()
            } else {
                Self::from_wire(algorithm, beneath).filter(|_| is_plain)?
            };
            return Some(state.excepted(Some(exception)));
        }
        let writer = Algorithm::from_tag(bytes)?;
        let repr = writer.accept(ReadState(&read(writer.accept(BehindTag(bytes))?)?))?;
        Some(Self {
            repr,
            writer: Some(Arc::new(writer)),
        })
    }
}

/// The bytes behind the tag, compared in place: a backend reads a state for each policy of each
/// request.
struct BehindTag<'a>(&'a [u8]);

impl<'a> Visitor for BehindTag<'a> {
    type Output = Option<&'a [u8]>;
    fn visit<A: Wire<State: StateFormat>>(self, algorithm: &A) -> Option<&'a [u8]> {
        let rest = self.0.strip_prefix(algorithm.kind().as_slice())?;
        algorithm
            .parameters()
            .iter()
            .try_fold(rest, |rest, number| {
                rest.strip_prefix(double(*number).as_slice())
            })
    }
}

struct ReadNumbers<'a>(&'a Repr);

impl Visitor for ReadNumbers<'_> {
    type Output = Option<Numbers>;
    fn visit<A: Wire<State: StateFormat>>(self, _: &A) -> Option<Numbers> {
        StateFormat::read(self.0, A::numbers)
    }
}

struct ReadState<'a>(&'a [i64]);

impl Visitor for ReadState<'_> {
    type Output = Option<Repr>;
    fn visit<A: Wire<State: StateFormat>>(self, algorithm: &A) -> Option<Repr> {
        Some(algorithm.state(self.0)?.into_repr())
    }
}
