//! Generates the wire types from `proto/volley.proto` and `proto/otlp.proto`, with a protobuf compiler written in Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["proto/volley.proto", "proto/otlp.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
