//! A service that starts before its store.

use std::sync::Arc;
use std::time::Duration;

use throttle_test_servers::{Proxy, Server};

use crate::course::Course;
use crate::server::single;
use crate::{aside, place};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_without_a_store() {
    let _place = place().await;
    let server = Arc::new(aside(Server::start).await);
    let proxy = Proxy::start(server.port());
    proxy.refuse(true);
    let url = proxy.url();
    let mut course = Course::start_at_once(|| single(&url));
    course.fault_begins();
    course.run_for(Duration::from_secs(2)).await;
    proxy.refuse(false);
    course.fault_ends();
    course.run_for(Duration::from_secs(1)).await;
    let report = course.finish().await;
    report.check("no store for the first 2 s");
    report.check_breaker("no store");
    report.check_return("no store");
    report.check_charges(&[&server], 0, true);
}
