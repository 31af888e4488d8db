/// The accessors that tower's middleware has for its inner service, for a struct with the field
/// `inner: S`.
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

#[cfg(test)]
mod tests {
    use tower_layer::Layer;

    use crate::{Constant, InFlight, Pace, Rate, ShapeLayer, ThrottleLayer, limit};

    #[test]
    fn inner_service_is_read_changed_and_taken_out() {
        let mut throttle = ThrottleLayer::new(limit("in-flight", InFlight::new(1)).by(Constant))
            .unwrap()
            .layer(7);
        assert_eq!(*throttle.get_ref(), 7);
        *throttle.get_mut() += 1;
        assert_eq!((*throttle.get_ref(), throttle.into_inner()), (8, 8));
    }

    #[test]
    fn inner_service_of_a_shaped_one_is_too() {
        let layer = ShapeLayer::new(Pace::new(Rate::per_second(1))).unwrap();
        let mut shaped: crate::shape::Shape<i32, (), ()> = layer.layer(7);
        assert_eq!(*shaped.get_ref(), 7);
        *shaped.get_mut() += 1;
        assert_eq!((*shaped.get_ref(), shaped.into_inner()), (8, 8));
    }
}
