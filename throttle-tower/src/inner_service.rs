/// The accessors that tower's middleware has for its inner service, for a struct with the field `inner: S`.
macro_rules! inner_service_accessors {
    () => {
        /// The inner service.
        #[must_use]
        pub const fn get_ref(&self) -> &S {
            &self.inner
        }

        /// The inner service, mutably.
        #[must_use]
        pub const fn get_mut(&mut self) -> &mut S {
            &mut self.inner
        }

        /// Unwraps the inner service.
        #[must_use]
        pub fn into_inner(self) -> S {
            self.inner
        }
    };
}

pub(crate) use inner_service_accessors;
