//! Links the library so that the loader takes it for the driver and finds the real one behind it.
//!
//! `dlsym` on a handle searches the library and then what it needs. With the real driver as the first thing that it
//! needs, functions that the shim does not override come from there, those that nobody knows yet included. A linker
//! writes down the soname of the file that it links against, and the real driver's is the shim's own: so it gets an empty
//! library of another name, which exists only here. Beside the installed shim, that name is a link to the real driver.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The name behind which the real driver is.
const REAL: &str = "libcuda-real.so";

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
    // Programs without libgcc_s run with the driver, so they must run with the shim: the unwinder comes along.
    if env::var("CARGO_CFG_TARGET_ENV")? == "gnu" {
        fs::write(Path::new(&folder).join("libgcc_s.so"), "GROUP ( -lgcc_eh -lgcc )\n")?;
    }
    println!("cargo::rustc-link-search=native={folder}");
    for argument in [
        "-Wl,-soname,libcuda.so.1",
        // A path that is searched before LD_LIBRARY_PATH, which leads to the shim itself.
        "-Wl,--disable-new-dtags",
        "-Wl,-rpath,$ORIGIN",
        // Programs close the driver and use it afterwards.
        "-Wl,-z,nodelete",
        "-Wl,--no-as-needed",
        &stub.display().to_string(),
        "-Wl,--as-needed",
    ] {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
    Ok(())
}
