//! Memory of another process.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use gpuheap_cuda::raw::{Code, DevicePtr, IpcHandle};

use crate::support::*;

const HANDLE: &str = "GPUHEAP_TEST_HANDLE";

/// Opens what the parent exported, looks at it, writes to it.
#[test]
#[ignore = "the other process of the test below"]
fn child() {
    let _fresh = fresh();
    let text = std::env::var(HANDLE).unwrap();
    let bytes: Vec<u8> = text.split(',').map(|byte| byte.parse().unwrap()).collect();
    let mut address = DevicePtr::NULL;
    // SAFETY: `address` outlives the call; what is opened is used within its size.
    unsafe {
        good(cuIpcOpenMemHandle_v2(&raw mut address, IpcHandle(bytes.try_into().unwrap()), 1));
        assert_eq!(byte(DevicePtr(address.0 + (3 << 20))), 5);
        good(cuMemsetD8_v2(DevicePtr(address.0 + (3 << 20)), 6, 1));
        good(cuCtxSynchronize());
        assert_eq!(cuMemFree_v2(address), Code::INVALID_VALUE, "it is closed, not freed");
        good(cuIpcCloseMemHandle(address));
        assert_eq!(cuIpcCloseMemHandle(address), Code::INVALID_VALUE);
    }
    std::io::stdout().write_all(b"seen").unwrap();
}

#[test]
fn two_processes_see_the_same_memory() {
    let _fresh = fresh();
    let memory = allocate(4 << 20);
    let mut handle = IpcHandle([0; 64]);
    // SAFETY: all outlive the calls.
    unsafe {
        good(cuMemsetD8_v2(memory, 5, 4 << 20));
        good(cuCtxSynchronize());
        good(cuIpcGetMemHandle(&raw mut handle, memory));
        let mut own = DevicePtr::NULL;
        assert_eq!(
            cuIpcOpenMemHandle_v2(&raw mut own, handle, 1),
            Code::INVALID_CONTEXT,
            "a process has its own already"
        );
    }
    let text: Vec<String> = handle.0.iter().map(u8::to_string).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "share::child", "--ignored", "--nocapture"])
        .env(HANDLE, text.join(","))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert!(said.contains("seen"), "{said}");
    assert_eq!(byte(DevicePtr(memory.0 + (3 << 20))), 6);
}
