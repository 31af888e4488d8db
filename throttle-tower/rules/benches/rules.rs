//! What a rule file costs a request, beside the same limits in code: instructions, counted by
//! valgrind's callgrind.
//!
//!     cargo bench -p tower-throttle-rules --bench rules

#[path = "../../benches/support/callgrind.rs"]
mod callgrind;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::task::{Context, Waker};
use std::{env, pin};

use http::request::Parts;
use http::{Method, Request, Response, Uri};
use throttle_rules::{Registry, Rules};
use throttle_tower::{
    Constant, Gcra, Header, LimitTree, MemoryBackend, Rate, Throttle, ThrottleLayer, all, limit,
};
use tower::{Layer, Service, service_fn};

use callgrind::{CHILD, total};

type Answer = Ready<Result<Response<()>, Infallible>>;

const ONE: &str = r#"
version = 1
[[limit]]
name = "all"
by = "constant"
gcra = { rate = "1000000/second", burst = 1_000_000_000 }
"#;

/// A limit for one method, and one of whose header the request has none.
const THREE: &str = r#"
version = 1
[[limit]]
name = "all"
by = "constant"
gcra = { rate = "1000000/second", burst = 1_000_000_000 }
[[limit]]
name = "posts"
by = "constant"
gcra = { rate = "1000000/second", burst = 1_000_000_000 }
match = { methods = ["POST"] }
[[limit]]
name = "tenants"
by = "header:x-tenant"
gcra = { rate = "1000000/second", burst = 1_000_000_000 }
"#;

const NAMES: [&str; 8] = [
    "one limit, in code",
    "one limit, in a file",
    "three limits, in code",
    "three limits, in a file",
    "one limit of one path",
    "one limit of 1,000 paths",
    "two limits of one path each",
    "1,000 limits of one path each",
];

/// So many limits of so many paths each, one of which is that of the request, and one of all
/// requests.
fn by_path(limits: usize, paths: usize) -> String {
    let limit = |limit: usize| {
        let paths: Vec<String> = (0..paths)
            .map(|path| format!("\"/{limit}/{path}/*\""))
            .collect();
        format!(
            "[[limit]]\nname = \"{limit}\"\nby = \"constant\"\ngcra = {{ rate = \"9/second\", \
                burst = 1_000_000_000 }}\nmatch.paths = [{}]\n",
            paths.join(", ")
        )
    };
    ONE.to_owned() + &(0..limits).map(limit).collect::<String>()
}

fn gcra() -> Gcra {
    Gcra::new(Rate::per_second(1_000_000)).burst(1_000_000_000)
}

fn in_code(limits: impl Into<LimitTree>) -> ThrottleLayer {
    ThrottleLayer::new(limits.into()).expect("valid limits")
}

fn in_file(text: &str) -> ThrottleLayer {
    let rules = Rules::from_str("bench.toml", text, Registry::new()).expect("a valid file");
    rules.layer(MemoryBackend::new()).expect("valid limits").0
}

fn layer(place: usize) -> ThrottleLayer {
    match place {
        0 => in_code(limit("all", gcra()).by(Constant)),
        1 => in_file(ONE),
        2 => in_code(all((
            limit("all", gcra()).by(Constant),
            limit("posts", gcra())
                .by(Constant)
                .when(|parts: &Parts| parts.method == Method::POST),
            limit("tenants", gcra()).by(Header::new("x-tenant")),
        ))),
        3 => in_file(THREE),
        4 => in_file(&by_path(1, 1)),
        5 => in_file(&by_path(1, 1_000)),
        6 => in_file(&by_path(2, 1)),
        _ => in_file(&by_path(1_000, 1)),
    }
}

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [CHILD, place, requests] => {
            let answer = |_: Request<()>| -> Answer { ready(Ok(Response::new(()))) };
            let mut service = layer(place.parse().expect("a number")).layer(service_fn(answer));
            counted_requests(&mut service, requests.parse().expect("a number"));
        }
        [] => print(),
        _ => panic!("usage: rules"),
    }
}

/// Of the first path of the first limit.
fn request() -> Request<()> {
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from_static("/0/0/9");
    request
}

/// In memory, a request is decided and answered by the first poll.
#[inline(never)]
fn counted_requests<S>(service: &mut Throttle<S>, requests: usize)
where
    S: Service<Request<()>, Response = Response<()>> + Clone,
{
    for _ in 0..requests {
        let answer = pin::pin!(service.call(request()));
        assert!(black_box(answer.poll(&mut Context::from_waker(Waker::noop()))).is_ready());
    }
}

#[expect(
    clippy::print_stdout,
    clippy::float_arithmetic,
    reason = "a benchmark reports"
)]
fn print() {
    println!("| request, admitted | instructions | over the same in code |\n|---|---|---|");
    // The first thousand is a warm-up.
    let counts: Vec<u64> = (0..NAMES.len())
        .map(|place| (total(place, 3_000) - total(place, 1_000)) / 2_000)
        .collect();
    for (place, (name, own)) in NAMES.iter().zip(&counts).enumerate() {
        let ratio = *own as f64 / counts[place / 2 * 2] as f64;
        println!("| {name} | {own} | {ratio:.3} |");
    }
}
