use http::request::Parts;
use throttle_core::{ConfigError, Key};

use super::key_extractor::KeyExtractor;
use crate::client_ip::ClientIp;

macro_rules! tuple {
    ($($extractor:ident $index:tt),+) => {
        /// All parts together; missing where one of them is.
        impl<$($extractor: KeyExtractor),+> KeyExtractor for ($($extractor,)+) {
            fn extract(&self, parts: &Parts) -> Option<Key> {
                let key = Key::builder();
                $(let key = key.key(&self.$index.extract(parts)?);)+
                Some(key.finish())
            }

            fn check(&self) -> Result<(), ConfigError> {
                $(self.$index.check()?;)+
                Ok(())
            }

            fn uses_route(&self) -> bool {
                false $(|| self.$index.uses_route())+
            }

            fn uses_peer(&self) -> bool {
                false $(|| self.$index.uses_peer())+
            }

            fn client_ip(&self) -> Option<&ClientIp> {
                None$(.or_else(|| self.$index.client_ip()))+
            }

            fn describe(&self) -> String {
                let parts: &[String] = &[$(self.$index.describe()),+];
                format!("({})", parts.join(", "))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
