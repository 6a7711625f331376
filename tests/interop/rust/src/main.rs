//! The interop scenarios with tonic. Arguments: ADDRESS [CA_FILE].
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

pub mod pb {
    tonic::include_proto!("sluice.v1");
}
use pb::acquire_result::Outcome;
use pb::rate_limiter_client::RateLimiterClient;

type Fault = Box<dyn std::error::Error>;
type Client = RateLimiterClient<Channel>;

fn charge(limit: &str, key: &str, permits: u64) -> pb::AcquireRequest {
    pb::AcquireRequest {
        charges: vec![pb::Charge { limit: limit.into(), key: key.into(), permits: Some(permits) }],
        ..Default::default()
    }
}

fn ensure(condition: bool, what: impl std::fmt::Debug) -> Result<(), Fault> {
    if condition { Ok(()) } else { Err(format!("{what:?}").into()) }
}

fn expect_error<T>(got: Result<T, Status>, code: Code, text: &str) -> Result<(), Fault> {
    match got {
        Ok(_) => Err(format!("no error; wanted {code:?}").into()),
        Err(status) => ensure(status.code() == code && status.message().contains(text), status),
    }
}

async fn unary(client: &mut Client, prefix: &str) -> Result<(), Fault> {
    let key = format!("{prefix}-unary");
    let first = client.acquire(charge("hourly", &key, 3)).await?.into_inner();
    ensure(first.granted && first.charges[0].remaining == 0 && first.charges[0].capacity == 3, &first)?;
    let second = client.acquire(charge("hourly", &key, 1)).await?.into_inner();
    ensure(!second.granted && second.retry_after.as_ref().is_some_and(|d| d.seconds > 0), &second)
}

async fn batch(client: &mut Client, prefix: &str) -> Result<(), Fault> {
    let key = format!("{prefix}-batch");
    let request = pb::AcquireBatchRequest {
        acquisitions: vec![charge("wide", &key, 1), charge("no-such-limit", "", 1), charge("wide", &key, 2)],
    };
    let answer = client.acquire_batch(request).await?.into_inner();
    match &answer.results.iter().map(|r| r.outcome.as_ref()).collect::<Vec<_>>()[..] {
        [Some(Outcome::Response(first)), Some(Outcome::Error(second)), Some(Outcome::Response(third))] => ensure(
            first.granted
                && second.code == 5
                && second.message.contains("no-such-limit")
                && third.charges[0].remaining == 997,
            &answer,
        ),
        _ => ensure(false, &answer),
    }
}

async fn stream(client: &mut Client, prefix: &str) -> Result<(), Fault> {
    let key = format!("{prefix}-stream");
    let batch = pb::AcquireBatchRequest { acquisitions: vec![charge("wide", &key, 1); 5] };
    let batches = tokio_stream::iter(vec![batch; 10]);
    let mut answers = client.acquire_stream(batches).await?.into_inner();
    let mut remaining = 1000;
    while let Some(answer) = answers.message().await? {
        for result in answer.results {
            remaining -= 1;
            match result.outcome {
                Some(Outcome::Response(r)) => ensure(r.charges[0].remaining == remaining, r)?,
                other => ensure(false, other)?,
            }
        }
    }
    ensure(remaining == 950, remaining)
}

async fn watch(client: &mut Client, prefix: &str, timeout: Duration)
    -> Result<tonic::Streaming<pb::QueryResponse>, Fault> {
    let bucket = pb::query_request::Bucket { limit: "hourly".into(), key: format!("{prefix}-watch") };
    let mut request = Request::new(pb::WatchRequest { buckets: vec![bucket], min_interval: None });
    request.set_timeout(timeout);
    let mut answers = client.watch(request).await?.into_inner();
    let first = answers.message().await?;
    ensure(first.as_ref().is_some_and(|f| f.buckets[0].remaining == 3), &first)?;
    Ok(answers)
}

async fn deadline(client: &mut Client, prefix: &str) -> Result<(), Fault> {
    // tonic's timer covers only the headers; the server ends the stream by grpc-timeout.
    let mut answers = watch(client, prefix, Duration::from_millis(400)).await?;
    expect_error(answers.message().await, Code::DeadlineExceeded, "")
}

async fn cancel(client: &mut Client, prefix: &str) -> Result<(), Fault> {
    // Dropping the stream resets it; the connection stays open.
    drop(watch(client, prefix, Duration::from_secs(10)).await?);
    let answer = client.acquire(charge("wide", &format!("{prefix}-after-cancel"), 1)).await?.into_inner();
    ensure(answer.granted, answer)
}

async fn error_text(client: &mut Client) -> Result<(), Fault> {
    expect_error(client.acquire(charge("no-such-limit", "", 1)).await, Code::NotFound, "no-such-limit")?;
    expect_error(client.acquire(charge("wide", &"k".repeat(513), 1)).await, Code::InvalidArgument, "key")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Fault> {
    let arguments: Vec<String> = std::env::args().collect();
    let (endpoint, prefix) = match arguments.get(2) {
        Some(ca_file) => {
            let tls = ClientTlsConfig::new()
                .ca_certificate(Certificate::from_pem(std::fs::read(ca_file)?))
                .domain_name("localhost");
            (Endpoint::new(format!("https://{}", arguments[1]))?.tls_config(tls)?, "rust-tls")
        }
        None => (Endpoint::new(format!("http://{}", arguments[1]))?, "rust"),
    };
    let mut client = RateLimiterClient::new(endpoint.connect().await?);
    let mut failed = false;
    let mut report = |name: &str, outcome: Result<(), Fault>| match outcome {
        Ok(()) => println!("ok {name}"),
        Err(fault) => {
            failed = true;
            println!("FAILED {name}: {fault}");
        }
    };
    report("unary", unary(&mut client, prefix).await);
    report("batch", batch(&mut client, prefix).await);
    report("stream", stream(&mut client, prefix).await);
    report("deadline", deadline(&mut client, prefix).await);
    report("cancel", cancel(&mut client, prefix).await);
    report("error text", error_text(&mut client).await);
    std::process::exit(i32::from(failed));
}
