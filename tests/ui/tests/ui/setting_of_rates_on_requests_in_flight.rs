use std::time::Duration;

use throttle_tower::{Constant, InFlight, OnError, limit};

fn main() {
    let exports = || limit("exports", InFlight::new(20)).by(Constant);
    let _ = exports().wait_up_to(Duration::from_secs(1));
    let _ = exports().on_error(OnError::Open);
    let _ = exports().refund_if(limit::failed);
    let _ = limit("exports", InFlight::new(20)).by_async(|_| async { Some(1_u64) });
}
