//! A service that starts before its store.

use std::time::Duration;

use throttle_test_servers::{Proxy, Server};

use crate::course::Course;
use crate::place;
use crate::server::single;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_without_a_store() {
    let _place = place().await;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.refuse(true);
    let fault = async |course: &Course| {
        course.run_for(Duration::from_secs(2)).await;
        proxy.refuse(false);
    };
    let course = Course::start_at_once(|| single(&proxy.url()));
    course
        .with(fault, Duration::from_secs(1))
        .await
        .check_all("no store for the first 2 s", &server);
}
