//! What other servers answer: one that decides nothing, and limitador's library.

use std::collections::HashMap;
use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// The argument that makes this program serve one of them.
pub const CHILD: &str = "--ratelimit";

struct Empty;

/// As its own server asks it: by the first descriptor's entries, in memory.
struct Limitador(Arc<RateLimiter>);

/// Serves until the process is killed, on as many threads as there are processors, as the others.
pub fn child(arguments: &[String]) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener
            .local_addr()
            .expect("a bound listener has an address");
        println!("{address}");
        let mut server = tonic::transport::Server::builder();
        let router = match arguments[0].as_str() {
            "empty" => server.add_service(RateLimitServiceServer::new(Empty)),
            _ => server.add_service(RateLimitServiceServer::new(Limitador::new())),
        };
        let served = router.serve_with_incoming(TcpListenerStream::new(listener));
        served.await.expect("the server serves");
    });
}

#[tonic::async_trait]
impl RateLimitService for Empty {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(answer(&request, Code::Ok))
    }
}

fn answer(request: &Request<RateLimitRequest>, code: Code) -> Response<RateLimitResponse> {
    let status = DescriptorStatus {
        code: code.into(),
        ..DescriptorStatus::default()
    };
    Response::new(RateLimitResponse {
        overall_code: code.into(),
        statuses: vec![status; request.get_ref().descriptors.len()],
        ..RateLimitResponse::default()
    })
}

impl Limitador {
    fn new() -> Self {
        let limiter = RateLimiter::new(1_000_000);
        let variable = "remote_address".try_into().expect("a valid variable");
        let minute = 60;
        let limit = Limit::new("shop", u32::MAX.into(), minute, Vec::new(), vec![variable]);
        limiter.add_limit(limit);
        Self(Arc::new(limiter))
    }
}

#[tonic::async_trait]
impl RateLimitService for Limitador {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let asked = request.get_ref();
        let entries = asked
            .descriptors
            .iter()
            .flat_map(|descriptor| &descriptor.entries);
        let values: HashMap<_, _> = entries
            .map(|entry| (entry.key.clone(), entry.value.clone()))
            .collect();
        let decided = self.0.check_rate_limited_and_update(
            &Namespace::from(asked.domain.as_str()),
            &Context::from(values),
            u64::from(asked.hits_addend.max(1)),
        );
        let limited = decided
            .map_err(|error| Status::unavailable(error.to_string()))?
            .limited;
        let code = if limited { Code::OverLimit } else { Code::Ok };
        Ok(answer(&request, code))
    }
}
