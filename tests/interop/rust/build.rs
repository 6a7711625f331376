fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = std::env::var("SLUICE_PROTO_DIR")?;
    tonic_build::configure()
        .build_server(false)
        .compile_protos(&["sluice/v1/rate_limiter.proto"], &[protos.as_str()])?;
    Ok(())
}
