use std::sync::Arc;

use http::request::Parts;
use throttle_core::{ConfigError, Key};

use crate::client_ip::ClientIp;

/// Makes a key from a request's head. Requests with equal keys share a budget.
///
/// ```
/// use http::request::Parts;
/// use throttle_tower::{Key, KeyExtractor};
///
/// /// The customer's number, as the authentication before this layer has found it.
/// #[derive(Clone)]
/// struct Customer(u64);
///
/// struct ByCustomer;
///
/// impl KeyExtractor for ByCustomer {
///     fn extract(&self, parts: &Parts) -> Option<Key> {
///         parts.extensions.get().map(|Customer(number)| Key::from(*number))
///     }
/// }
///
/// let request = http::Request::get("/orders").extension(Customer(7)).body(())?;
/// assert_eq!(ByCustomer.extract(&request.into_parts().0), Some(Key::from(7)));
/// # Ok::<(), http::Error>(())
/// ```
///
/// # Contract
///
/// ## Trust
///
/// The head is what the client sent. A key that a client can change at will gives it a new budget
/// each time: see [what not to key by](crate::extract#what-not-to-key-by). A key may hold secrets:
/// it is stored as a digest or escaped, and never logged.
///
/// ## Injectivity
///
/// Keys of different budgets differ, and a budget has one key: of what a client may spell in
/// several ways, such as a path or a host, one spelling is the key. Build a key of several parts
/// with [`Key::builder`], which keeps the parts apart, and not by joining strings.
///
/// ## Stability
///
/// The same request gives the same key in every process that shares a store, before and after a
/// restart.
///
/// ## Missing keys
///
/// `None` means that the request has no key. [`Limit::on_missing`](crate::Limit::on_missing)
/// decides what happens then, so an extractor does not invent a substitute.
///
/// ## Speed
///
/// [`extract`](Self::extract) runs once for each request and limit, on the task of the request, so
/// it does not block. For a key that needs an async lookup use
/// [`Unkeyed::by_async`](crate::limit::Unkeyed::by_async).
///
/// ## Panics
///
/// A panic of an extractor is a panic of the request. Nothing has been charged by then.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whose budget a request spends",
    label = "expected a key extractor such as `ClientIp::peer()`",
    note = "for a header's value write `Header::new(\"x-api-key\")`; for a closure \
        `from_fn(|parts: &Parts| \
            Some(key))`; for one budget for all requests `Constant`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// The key, or `None` where the request has none.
    fn extract(&self, parts: &Parts) -> Option<Key>;

    /// The extractors that this one consists of, if there are any: those that
    /// [`check`](Self::check), [`uses_route`](Self::uses_route), [`client_ip`](Self::client_ip) and
    /// [`is_spoofable`](Self::is_spoofable) are asked about. Defaults to none.
    fn parts(&self) -> Vec<&dyn KeyExtractor> {
        Vec::new()
    }

    /// Checks the extractor's settings; called once, when the layer is built. Defaults to checking
    /// its [parts](Self::parts).
    ///
    /// # Errors
    ///
    /// Names the setting that is wrong.
    fn check(&self) -> Result<(), ConfigError> {
        self.parts().into_iter().try_for_each(|part| part.check())
    }

    /// Whether the key depends on the [`Route`](super::Route); called once, when the layer is
    /// built. [`Warning::RouteUnknown`](crate::Warning::RouteUnknown) covers such an extractor.
    /// Defaults to what its [parts](Self::parts) return.
    fn uses_route(&self) -> bool {
        self.parts().into_iter().any(|part| part.uses_route())
    }

    /// Returns the source of the client's address that the key depends on; called for the first
    /// requests of a limit. [`Warning::PeerUnknown`](crate::Warning::PeerUnknown) and
    /// [`Warning::ClientUnknown`](crate::Warning::ClientUnknown) cover such an extractor. Defaults
    /// to the first that its [parts](Self::parts) return.
    fn client_ip(&self) -> Option<&ClientIp> {
        self.parts().into_iter().find_map(|part| part.client_ip())
    }

    /// Whether a client can send requests with the key of another client, because nothing checks
    /// what it sends, or because clients share keys. Called once, when a layer is built, for limits
    /// that [ban](crate::Limit::ban) keys. Defaults to whether all of its [parts](Self::parts) are
    /// so, and to false without parts.
    fn is_spoofable(&self) -> bool {
        let parts = self.parts();
        !parts.is_empty() && parts.into_iter().all(|part| part.is_spoofable())
    }

    /// The extractor's name in a [`Warning`](crate::Warning). Defaults to the name of its type.
    fn describe(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }

    /// Uses this extractor's key, or `other`'s if this one's is missing. Equal keys share a budget,
    /// whichever extractor made them. Keys are equal if they have the same kind (such as bytes, or
    /// a number) and the same content.
    fn or<E: KeyExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or(self, other)
    }
}

/// The key of one extractor, or where it is missing, that of another; see [`KeyExtractor::or`].
///
/// ```
/// use throttle_tower::{Header, Key, KeyExtractor};
///
/// let user_or_token = Header::new("x-user").or(Header::new("x-token"));
/// let request = http::Request::builder().header("x-token", "s3cret").body(())?;
/// let key = user_or_token.extract(&request.into_parts().0);
/// assert_eq!(key, Some(Key::builder().bytes(b"s3cret").finish()));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B>(A, B);

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        self.0.extract(parts).or_else(|| self.1.extract(parts))
    }

    fn parts(&self) -> Vec<&dyn KeyExtractor> {
        vec![&self.0, &self.1]
    }

    fn is_spoofable(&self) -> bool {
        self.0.is_spoofable() || self.1.is_spoofable()
    }

    fn describe(&self) -> String {
        format!("{} or {}", self.0.describe(), self.1.describe())
    }
}

macro_rules! pointer {
    ($($pointer:ident)*) => {$(
        impl<E: KeyExtractor + ?Sized> KeyExtractor for $pointer<E> {
            fn extract(&self, parts: &Parts) -> Option<Key> {
                (**self).extract(parts)
            }

            fn check(&self) -> Result<(), ConfigError> {
                (**self).check()
            }

            fn uses_route(&self) -> bool {
                (**self).uses_route()
            }

            fn client_ip(&self) -> Option<&ClientIp> {
                (**self).client_ip()
            }

            fn is_spoofable(&self) -> bool {
                (**self).is_spoofable()
            }

            fn describe(&self) -> String {
                (**self).describe()
            }
        }
    )*};
}

pointer! { Arc Box }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_ip::IpPrefix;
    use crate::extract::{Constant, Extension, Header, Route, from_fn};

    /// Every extractor that consists of others.
    fn around(part: impl KeyExtractor + Clone) -> Vec<Arc<dyn KeyExtractor>> {
        vec![
            Arc::new(part.clone().or(Constant)),
            Arc::new(Constant.or(part.clone())),
            Arc::new((part.clone(), Constant)),
            Arc::new((Constant, part.clone())),
            Arc::new((Constant, Constant, part.clone())),
            Arc::new((Constant, Constant, Constant, part.clone())),
            Arc::new(Box::new(part.clone())),
            Arc::new(Arc::new(part)),
        ]
    }

    #[test]
    fn extractor_of_several_is_checked_part_by_part() {
        for extractor in around(Header::new("no name")) {
            assert_eq!(
                extractor.check().unwrap_err().field(),
                "header",
                "{}",
                extractor.describe()
            );
        }
        for extractor in around(Header::new("x-user")) {
            assert!(extractor.check().is_ok());
        }
    }

    #[test]
    fn extractor_of_several_uses_what_its_parts_use() {
        for extractor in around(Route) {
            assert!(extractor.uses_route(), "{}", extractor.describe());
            assert_eq!(extractor.client_ip(), None, "{}", extractor.describe());
        }
        for extractor in around(ClientIp::peer())
            .into_iter()
            .chain(around(ClientIp::peer().by_prefix(IpPrefix::default())))
        {
            assert!(!extractor.uses_route(), "{}", extractor.describe());
            assert_eq!(
                extractor.client_ip(),
                Some(&ClientIp::peer()),
                "{}",
                extractor.describe()
            );
        }
    }

    #[test]
    fn key_of_several_is_all_of_theirs_or_the_first() {
        let header = |name: &str| Header::new(name);
        let parts = |names: &[&str]| {
            let request = names
                .iter()
                .fold(http::Request::builder(), |request, name| {
                    request.header(*name, *name)
                });
            request.body(()).unwrap().into_parts().0
        };
        let joined = |names: &[&str]| {
            let keys = names
                .iter()
                .map(|name| header(name).extract(&parts(&[name])).unwrap());
            keys.fold(Key::builder(), |joined, key| joined.key(&key))
                .finish()
        };
        let (a, b, c, d) = (header("a"), header("b"), header("c"), header("d"));
        let all = parts(&["a", "b", "c", "d"]);
        let four = (a.clone(), b.clone(), c.clone(), d.clone());
        assert_eq!(
            (a.clone(), b.clone()).extract(&all),
            Some(joined(&["a", "b"]))
        );
        assert_eq!(
            (a.clone(), b.clone(), c.clone()).extract(&all),
            Some(joined(&["a", "b", "c"]))
        );
        assert_eq!(four.extract(&all), Some(joined(&["a", "b", "c", "d"])));
        for missing in 0..4 {
            let mut names = vec!["a", "b", "c", "d"];
            names.remove(missing);
            assert_eq!(four.extract(&parts(&names)), None, "{names:?}");
        }
        let either = a.clone().or(b.clone());
        assert_eq!(either.extract(&all), a.extract(&all));
        assert_eq!(either.extract(&parts(&["b"])), b.extract(&all));
        assert_eq!(either.extract(&parts(&["c"])), None);
    }

    #[test]
    fn extractor_of_several_is_described_by_its_parts() {
        let masked = ClientIp::peer().by_prefix(IpPrefix::default());
        let constant = Constant.describe();
        assert!(constant.ends_with("Constant"), "{constant}");
        let described: Vec<String> = around(masked).iter().map(KeyExtractor::describe).collect();
        let expected = [
            format!("ClientIp or {constant}"),
            format!("{constant} or ClientIp"),
            format!("(ClientIp, {constant})"),
            format!("({constant}, ClientIp)"),
            format!("({constant}, {constant}, ClientIp)"),
            format!("({constant}, {constant}, {constant}, ClientIp)"),
            "ClientIp".to_owned(),
            "ClientIp".to_owned(),
        ];
        assert_eq!(described, expected);
        assert_eq!(ClientIp::peer().describe(), "ClientIp");
    }

    #[test]
    fn debug_output_of_an_extractor_shows_no_key() {
        assert_eq!(
            format!("{:?}", Extension::by(|user: &u64| *user)),
            "Extension<u64>"
        );
        assert_eq!(format!("{:?}", from_fn(|_: &Parts| Some(7))), "FromFn");
    }

    #[test]
    fn extractor_behind_a_pointer_finds_the_same_key() {
        let parts = |name: &str| {
            http::Request::builder()
                .header(name, "ada")
                .body(())
                .unwrap()
                .into_parts()
                .0
        };
        let plain = Header::new("a");
        let pointers: [Box<dyn KeyExtractor>; 2] =
            [Box::new(plain.clone()), Box::new(Arc::new(plain.clone()))];
        for pointer in pointers {
            assert_eq!(pointer.extract(&parts("a")), plain.extract(&parts("a")));
            assert_eq!(pointer.extract(&parts("b")), None);
        }
    }
}
