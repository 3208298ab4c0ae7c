//! Generates the wire types from `proto/volley.proto`, and those of OpenTelemetry's traces, with a protobuf compiler
//! written in Rust.

/// OpenTelemetry's service of traces. The files below `proto/opentelemetry` are those of opentelemetry-proto 1.10, unchanged.
const TRACES: &str = "proto/opentelemetry/proto/collector/trace/v1/trace_service.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["proto/volley.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    let mut files = protox::compile([TRACES], ["proto"])?;
    for file in &mut files.file {
        // Comments, whose indented lines rustdoc would take for code.
        file.source_code_info = None;
    }
    tonic_prost_build::configure().compile_fds(files)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
