//! Takes a permit. Arguments: LIMIT KEY. Exit codes: 0 granted, 1 denied, 3 no answer.
use std::{env, process::exit, time::Duration};

use pb::rate_limiter_client::RateLimiterClient;
use tonic::{transport::Endpoint, Request};

pub mod pb {
    tonic::include_proto!("sluice.v1");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = env::args().collect();
    let server = env::var("SLUICE_SERVER").unwrap_or("127.0.0.1:7200".into());
    let endpoint = Endpoint::new(format!("http://{server}")).expect("SLUICE_SERVER is HOST:PORT");
    let mut client = RateLimiterClient::new(endpoint.connect_lazy()); // clone it for each task

    let charge =
        pb::Charge { limit: arguments[1].clone(), key: arguments[2].clone(), permits: None };
    let mut request =
        Request::new(pb::AcquireRequest { charges: vec![charge], ..Default::default() });
    request.set_timeout(Duration::from_secs(1));
    match client.acquire(request).await.map(|answer| answer.into_inner()) {
        Err(status) => {
            // Decide what your program does without an answer: go on, or refuse the work.
            println!("error: {:?}: {}", status.code(), status.message());
            exit(3);
        }
        Ok(answer) if !answer.granted => {
            let wait = answer.retry_after.unwrap_or_default();
            println!("denied; try again in {:.0} s", wait.seconds as f64 + f64::from(wait.nanos) / 1e9);
            exit(1);
        }
        Ok(answer) => println!("granted; {} left", answer.charges[0].remaining),
    }
}
