//! Links the library so that the loader takes it for the driver's and finds that one behind it.
//!
//! The same way as `gpuheap-shim`, whose `build.rs` says why: it needs an empty library of another name, which exists
//! only here. Beside the installed library, that name is a link to the driver's.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The name behind which the driver's library is.
const REAL: &str = "libnvidia-ml-real.so";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS")? != "linux" {
        return Ok(());
    }
    let folder = env::var("OUT_DIR")?;
    let (stub, source) = (Path::new(&folder).join(REAL), Path::new(&folder).join("empty.c"));
    fs::write(&source, "")?;
    let linker = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    let made = Command::new(&linker)
        .args(["-shared", "-nostdlib", "-o"])
        .arg(&stub)
        .arg(format!("-Wl,-soname,{REAL}"))
        .arg(&source)
        .status()
        .map_err(|error| format!("Failed to run `{linker}`, which links programs here: {error}"))?;
    if !made.success() {
        return Err(format!("`{linker}` failed to make `{}`", stub.display()).into());
    }
    // Programs without libgcc_s run with the driver's library, so they must run with this one: the unwinder comes along.
    if env::var("CARGO_CFG_TARGET_ENV")? == "gnu" {
        fs::write(Path::new(&folder).join("libgcc_s.so"), "GROUP ( -lgcc_eh -lgcc )\n")?;
    }
    println!("cargo::rustc-link-search=native={folder}");
    for argument in [
        "-Wl,-soname,libnvidia-ml.so.1",
        // A path that is searched before LD_LIBRARY_PATH, which leads to this library itself.
        "-Wl,--disable-new-dtags",
        "-Wl,-rpath,$ORIGIN",
        // Programs close the library and open it again.
        "-Wl,-z,nodelete",
        "-Wl,--no-as-needed",
        &stub.display().to_string(),
        "-Wl,--as-needed",
    ] {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
    Ok(())
}
