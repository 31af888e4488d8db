use http::request::Parts;
use throttle_core::Key;

use super::key_extractor::KeyExtractor;

macro_rules! tuple {
    ($($extractor:ident $index:tt),+) => {
        /// All parts together; missing where one of them is.
        impl<$($extractor: KeyExtractor),+> KeyExtractor for ($($extractor,)+) {
            fn extract(&self, parts: &Parts) -> Option<Key> {
                let key = Key::builder();
                $(let key = key.key(&self.$index.extract(parts)?);)+
                Some(key.finish())
            }

            fn parts(&self) -> Vec<&dyn KeyExtractor> {
                vec![$(&self.$index),+]
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
