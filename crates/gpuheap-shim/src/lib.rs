//! The `libcuda.so.1` that stands between a program and the CUDA driver.
//!
//! It is found because it has the driver's name in a folder that comes first in `LD_LIBRARY_PATH`; beside it a link
//! `libcuda-real.so` leads to the real driver, which `build.rs` made the library need. So `dlsym` on its handle gives the
//! functions of this crate, and for every name that is not overridden those of the driver: there is no list of
//! functions to forward, and no forwarding code. `cuGetProcAddress` is overridden, since newer programs take all
//! functions from there.
//!
//! The shim counts, and with a budget it denies. In a run (`GPUHEAP_RUN`) it also moves: large allocations are chunks,
//! whose memory can be exchanged while their addresses stay.
//!
//! ```text
//!  the program's calls ─▶ around: depth, gate ─▶ linear ─▶ converted ┐
//!                                               paging ─────────────┼▶ chunks ─▶ charge ─▶ ledger, events
//!                         submissions: gate ─▶ placement: launches   │               (within the budget, or spilled)
//!                                              │ name chunks ─▶ swap │
//!  a wait of the program ──────────────────────┤                 │   ▼
//!  yield, wake ─▶ control ─▶ sleep ────────────┴─▶ quiet (gate closed, devices idle) ─▶ moves ─▶ host, locked (pools)
//! ```
//!
//! | module | what is there |
//! | --- | --- |
//! | `overrides` | the list of overridden functions: exports, pointers to the driver's, names for tests |
//! | `submissions` | the list of those that give the device work: they pass the gate |
//! | `around` | what is done around each call: re-entrancy, the gate, panics, a driver that lacks the function |
//! | `gate`, `quiet` | holding all calls back, and waiting until the devices are idle |
//! | `chunks`, `converted`, `pointers` | memory that can be exchanged; `cuMemAlloc` in such pieces; what programs are told of an address |
//! | `moving`, `moves` | the driver as a table; exchanging memory behind addresses |
//! | `ahead` | copies that are made beside the program's kernels, for chunks that are about to leave |
//! | `pool`, `host`, `locked` | the host's memory: behind addresses, and for what sleeps |
//! | `sleep`, `control` | going to sleep and waking up; the thread that is asked for it |
//! | `placement`, `feedback`, `passes` | which chunks are on the device when not all can be; whether that was of use; how often kernels read |
//! | `swap` | where chunks stay, or how they come and go, within a step: its period, what is used in it, the plan, following it; chunks that kernels want |
//! | `pins` | memory that stays on its device, as others know where it is |
//! | `ipc` | sharing converted memory with other processes of the run, which open its chunks |
//! | `real` | the driver behind: its handle, its functions, its answers to small questions |
//! | `resolve` | `cuGetProcAddress` |
//! | `linear`, `ordered`, `paging`, `others`, `contexts`, `sizes` | the bodies of overridden functions, by subject |
//! | `state` | what is alive: allocations, physical memory and its mappings, pools; given up and made anew after a fork |
//! | `charge` | bytes that are charged to a kind and a device as long as something is alive |
//! | `origin` | which library asked: the stack up to the first code that says so, and stacks seen before |
//! | `events` | what happens to memory, written to a file of the run |
//! | `ledger` | the figures, in memory that processes share and that outlives them; budgets. Its form is `gpuheap-ledger`'s |
//! | `ranges` | which chunk is at an address |
//! | `parameters` | where kernels have parameters that can hold addresses |
//! | `graphs` | which chunks the kernels of a graph name |
//! | `touched`, `temperature` | which chunks a launch names, and how warm that makes them |
//! | `devices` | where each device has its figures, whatever number it has in the process |
//! | `depth` | the calling thread's depth |
//! | `threads`, `waiter` | threads of this library's own; waiting for what may have no end |
//!
//! # Settings
//!
//! | variable | meaning |
//! | --- | --- |
//! | `GPUHEAP_LEDGER` | the file that all processes of a run share; without it a process counts for itself |
//! | `GPUHEAP_BUDGET` | bytes that the run may hold on each device, as a plain number; the first process of a ledger writes it there. Nothing here can complain about another text, so whoever sets it checks it |
//! | `GPUHEAP_RUN` | the folder of the run: what happens to memory is written there, to a file for each process; with it memory can move, and the process listens to a socket there |
//! | `GPUHEAP_MOVE` | with 0 nothing moves |
//! | `GPUHEAP_SPILL` | bytes of host memory that may stand behind addresses of devices, or `auto` for four fifths of what is free, where the ledger has no limit yet: `gpuheap run` writes one there, half of that |
//! | `GPUHEAP_EVENTS` | the most records of such a file; without it about a million, with 0 there is no file |
//!
//! `gpuheap_shim_bytes(kind, device)` reads a figure, `gpuheap_shim_version()` tells the shim from a driver, and one
//! form of the ledger from another.
//!
//! # Traps
//!
//! What goes wrong between a program and libcuda, with a letter for the kind (L loading, R resolving, A allocation, C
//! counting, S state and stops, I sharing). Handled here:
//!
//! | trap | where |
//! | --- | --- |
//! | L7, L8 needs libc and the driver only | `build.rs`; a test reads the library's needs |
//! | L10 two copies in one process | each has a slot of the ledger |
//! | L11 other tools patch our functions | exports are ordinary functions, the driver is called by pointers |
//! | L12 closed by the program | `-z nodelete` |
//! | L13 `RTLD_LOCAL`, `RTLD_DEEPBIND` | nothing is looked up in the global scope |
//! | R1, R2, R3, R4, R7 versions and default streams | `resolve`: the driver answers, its addresses are swapped |
//! | R5 the driver lacks an overridden function | `around`: `CUDA_ERROR_NOT_FOUND`; `resolve` never offers it |
//! | R6 `cuGetExportTable` | not overridden |
//! | A1, A2, A3 null and unread results, codes | bodies read results after success only; all codes are the driver's |
//! | A4, A5 device of an allocation | `cuMemCreate` by its properties, others by the context, only devices have budgets |
//! | A6, A7, A8, A10 | the driver is called with the caller's own arguments; one table for all kinds of addresses |
//! | A9 sizes within the budget | `sizes` |
//! | C1 pools | `ordered`: by what the pool holds |
//! | C2, C3, C4, C5, C7 | `charge`, `ledger`: once for each piece of memory, checked, before the call, atomic, in shards |
//! | S3 re-entrancy | `depth`, `around` |
//! | S4 no lock across a call of the driver | bodies take what they need out of `state` before the call |
//! | S6 fork | `state`: given up in the child, which gets a slot of its own |
//! | S7, S8, S12, S13 killed processes, exec, namespaces | `ledger`, `gpuheap_ledger::identity`: a slot is written by its owner alone |
//! | a ledger that is cut short | `ledger::torn`: other memory in its place, with the budget and what the process held |
//! | I1 `cuIpcGetMemHandle` of what is no memory of the driver's `cuMemAlloc` | `ipc`: a handle of our own; what is on the host comes back first |
//! | I2 what is passed on or registered stays | `chunks`: pinned by export and multicast, `ipc`: by a handle, `pins`: by a descriptor of its range, tokens or synchronous operations, which is what registers memory with network cards. `cuMemHostRegister` is of the host's memory, which never moves |
//! | S9, S10, S11 exit, panics, messages | nothing has a destructor; panics end in the driver's call; nothing is printed |
//! | S1 unmapping while kernels run | `quiet`: nothing moves before the gate is closed and the devices are idle |
//! | S2 `cuMemFree` waits | `converted`: it waits as the driver's does |
//! | S5 captures | `submissions` counts them; nothing moves, waits or is unmapped meanwhile, and what is freed goes later |
//! | I3 memory of the host at a device's address | `pointers` |
//! | I4 nodes without memory | `host`: another node |
//! | I5 peers | `converted`, `moves`: access is replayed for whoever had it |
//! | I6 managed memory | never used |
//!
//! L1 to L6 and L9 are the command's part, C6 the library's for NVML. Open: I7 (another wrapped driver below is taken for
//! the driver). `cuGraphLaunch` takes memory of graphs without being seen: the figure is read from the driver when
//! something else is counted. Pools shrink at synchronisations, likewise. Contexts, modules and libraries' tables are not
//! charged. Small allocations, pools and arrays do not move. Contexts that are not primary are waited for, those of parts
//! of a device with it; memory of a device without a primary context does not move.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "C functions are exported, and the driver's are called")]

mod ahead;
mod around;
mod charge;
mod chunks;
mod contexts;
mod control;
mod converted;
mod depth;
mod devices;
mod events;
mod feedback;
mod gate;
mod graphs;
mod host;
mod ipc;
mod ledger;
mod linear;
mod locked;
mod moves;
mod moving;
mod ordered;
mod origin;
mod others;
mod overrides;
mod paging;
mod parameters;
mod passes;
mod pins;
mod placement;
mod pointers;
mod pool;
mod quiet;
mod ranges;
mod real;
mod resolve;
#[cfg(test)]
mod rig;
mod sizes;
mod sleep;
mod state;
mod submissions;
mod swap;
mod temperature;
mod threads;
mod touched;
mod waiter;

pub use charge::Kind;
pub use overrides::NAMES;
