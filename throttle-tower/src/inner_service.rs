/// The accessors that tower's middleware has for its inner service, for a struct with the field `inner: S`.
macro_rules! inner_service_accessors {
    () => {
        /// Returns the inner service.
        #[must_use]
        pub const fn get_ref(&self) -> &S {
            &self.inner
        }

        /// Returns the inner service, to change it.
        #[must_use]
        pub const fn get_mut(&mut self) -> &mut S {
            &mut self.inner
        }

        /// Takes out the inner service.
        #[must_use]
        pub fn into_inner(self) -> S {
            self.inner
        }
    };
}

pub(crate) use inner_service_accessors;
