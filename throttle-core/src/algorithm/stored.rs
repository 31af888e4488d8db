//! How the state of any algorithm is kept: as two words, or as itself.

use super::exception::Exception;
use super::fixed_window::Count;
use super::gcra::Tat;
use super::interval_bucket::Balance;
use super::leaky_bucket::Departures;
use super::level::Level;
use super::sliding_log::Log;
use super::sliding_window::Ring;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Repr {
    Words(Words),
    Departures(Departures),
    Ring(Ring),
    Log(Log),
    /// A state with an exception over it.
    Excepted(Box<Exception>, Box<Repr>),
}

impl Repr {
    /// The state and what stands over it.
    pub(crate) fn without_exception(self) -> (Option<Box<Exception>>, Self) {
        match self {
            Self::Excepted(exception, beneath) => (Some(exception), *beneath),
            repr => (None, repr),
        }
    }

    /// The state with an exception over it, if there is one.
    pub(crate) fn beneath(self, exception: Option<Box<Exception>>) -> Self {
        match exception {
            Some(exception) => Self::Excepted(exception, Box::new(self)),
            None => self,
        }
    }

    /// What stands in the place of a state that was moved out.
    pub(crate) const EMPTY: Self = Self::Words(Words {
        instant: 0,
        amount: 0,
    });
}

/// The states that fit two words: an instant and an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) instant: i64,
    /// Below 2^53.
    pub(crate) amount: u64,
}

/// How an algorithm's own state is kept in a [`Repr`] and read again.
pub(crate) trait StateFormat: Sized {
    /// Whether two words hold it.
    const IS_SMALL: bool;

    /// The state that two words stand for; `None` if the algorithm's states are larger.
    fn from_words(words: Words) -> Option<Self>;
    /// The reverse.
    fn words(&self) -> Option<Words>;
    fn into_repr(self) -> Repr;
    /// Returns what `f` reads from the state; `None` if another algorithm wrote it.
    fn read<R>(repr: &Repr, f: impl FnOnce(&Self) -> R) -> Option<R>;
    /// Returns what `f` does to the state; `None` if another algorithm wrote it.
    fn change<R>(repr: &mut Repr, f: impl FnOnce(&mut Self) -> R) -> Option<R>;
}

/// For a state of an instant and an amount below 2^53.
macro_rules! stored_as_words {
    ($($state:ident { $instant:ident, $amount:ident })*) => {$(
        impl From<Words> for $state {
            #[inline]
            fn from(words: Words) -> Self {
                Self { $instant: words.instant, $amount: words.amount }
            }
        }

        impl From<$state> for Words {
            #[inline]
            fn from(state: $state) -> Self {
                Self { instant: state.$instant, amount: state.$amount }
            }
        }

        impl StateFormat for $state {
            const IS_SMALL: bool = true;

            #[inline]
            fn from_words(words: Words) -> Option<Self> {
                Some(words.into())
            }

            #[inline]
            fn words(&self) -> Option<Words> {
                Some(Words { instant: self.$instant, amount: self.$amount })
            }

            #[inline]
            fn into_repr(self) -> Repr {
                Repr::Words(self.into())
            }

            #[inline]
            fn read<R>(repr: &Repr, f: impl FnOnce(&Self) -> R) -> Option<R> {
                if let Repr::Words(words) = repr { Some(f(&(*words).into())) } else { None }
            }

            #[inline]
            fn change<R>(repr: &mut Repr, f: impl FnOnce(&mut Self) -> R) -> Option<R> {
                let Repr::Words(words) = repr else { return None };
                let mut state = Self::from(*words);
                let result = f(&mut state);
                *words = state.into();
                Some(result)
            }
        }
    )*};
}

stored_as_words! {
    Count { start, used }
    Tat { whole, frac }
    Balance { anchor, tokens }
    Level { last, grains }
}

macro_rules! stored_as_itself {
    ($($state:ident)*) => {$(
        impl StateFormat for $state {
            const IS_SMALL: bool = false;

            #[inline]
            fn from_words(_: Words) -> Option<Self> {
                None
            }

            #[inline]
            fn words(&self) -> Option<Words> {
                None
            }

            fn into_repr(self) -> Repr {
                Repr::$state(self)
            }

            fn read<R>(repr: &Repr, f: impl FnOnce(&Self) -> R) -> Option<R> {
                if let Repr::$state(state) = repr { Some(f(state)) } else { None }
            }

            fn change<R>(repr: &mut Repr, f: impl FnOnce(&mut Self) -> R) -> Option<R> {
                if let Repr::$state(state) = repr { Some(f(state)) } else { None }
            }
        }
    )*};
}

stored_as_itself! { Departures Ring Log }
