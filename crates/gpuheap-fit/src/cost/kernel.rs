//! What a call of an operator takes on the device.
//!
//! A kernel takes as long as its arithmetic or its traffic, whichever is longer, and a little to begin and to end. The
//! figures are from single operators on an H200 (`gpu/fit_workspaces.py` measures them); what differs from device to
//! device is in its table.

use super::product::{Product, Speed};
use crate::device::{Device, is_matrix_product};
use crate::trace::{Call, Trace};

/// What an operator does, as far as its time goes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Work {
    Product,
    Products,
    Convolution {
        backward: bool,
    },
    Attention,
    Recurrent,
    /// From or to the host, if only one of both sides is on the device.
    Copy,
    /// It goes so many times over `traffic`, in so many kernels.
    Moves {
        times: f64,
        traffic: Traffic,
        kernels: f64,
    },
}

/// What counts as read and written.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Traffic {
    All,
    /// What is read is chosen from a table by a list: as much as is written.
    Chosen,
    /// Only what is written.
    Written,
}

/// How often kernels go over their operands, or in how small pieces they do, by a part of the operator's name; the first
/// that fits counts.
const PASSES: [(&str, f64, f64); 19] = [
    ("_embedding_bag_backward", 6.0, 22.0),
    ("group_norm_backward", 3.2, 3.0),
    ("group_norm", 2.9, 2.0),
    ("batch_norm", 2.7, 1.0),
    ("layer_norm_backward", 3.2, 3.0),
    ("layer_norm", 2.2, 1.0),
    ("log_softmax_backward", 1.55, 1.0),
    ("softmax_backward", 1.6, 1.0),
    ("log_softmax", 1.9, 1.0),
    ("softmax", 1.45, 1.0),
    ("native_dropout_backward", 1.0, 1.0),
    ("native_dropout", 1.8, 1.0),
    ("max_pool2d_with_indices_backward", 4.4, 1.0),
    ("max_pool", 2.3, 1.0),
    ("upsample", 2.0, 1.0),
    ("embedding_dense_backward", 3.0, 4.0),
    ("_foreach", 1.15, 1.0),
    ("_fused", 1.1, 1.0),
    ("sum.", 1.1, 1.0),
];
/// Convolutions that sum over fewer products than this are done without the matrix units.
const FEW: f64 = 160.0;
/// The part of the speed of plain 32-bit products that those come to.
const FEW_PART: f64 = 0.42;
/// The part of the speed of a convolution that its gradients come to.
const BACKWARD_PART: f64 = 0.78;
/// How often a convolution with next to no products for a result goes over its tensors.
const SPARSE_PASSES: f64 = 2.5;
/// Products for a result under which it is one of those, and may have one filter for each channel.
const SPARSE: f64 = 60.0;
/// The part of the speed of plain 32-bit products that convolutions of one filter a channel come to: PyTorch's own
/// kernels for them add product after product without matrix units, whatever the numbers' type. Filters of 3 x 3 to
/// 7 x 7 take 9.5 to 33.5 ps for a result on an H200, in 32 bits as in 16, which this and the next give within 13 %.
const DEPTHWISE_PART: f64 = 0.07;
/// What it takes to begin and to store a result, in products.
const DEPTHWISE_RESULT: f64 = 8.4;
/// A picture with fewer numbers than this part of the result's has fewer channels.
const DEPTHWISE_PIXELS: f64 = 0.95;
/// How much longer the gradient of the picture takes than the convolution, of as many numbers.
const DEPTHWISE_PICTURE: f64 = 1.35;
/// The same for the gradient of the filters, which sums over all pictures and pixels: 1.9 to 2.8 times, 3.4 where
/// pictures are small.
const DEPTHWISE_FILTERS: f64 = 2.4;
/// The part of the speed of attention in 32 bits that it comes to in 16: softmax is no faster.
const HALF_ATTENTION: f64 = 0.7;
/// Rows and columns of scores that attention works on at once.
const ATTENTION_TILE: f64 = 64.0;
/// The part of the speed of plain products that recurrent layers come to: each step waits for the one before.
const RECURRENT_PART: f64 = 0.65;
/// What is this part of the second-level cache, or less, is there still from the operator before.
const CACHED: f64 = 0.6;
/// How much faster that is read and written.
const CACHE_PART: f64 = 0.5;

/// Numbers of 16 bits that matrix units load at once: where a row has another number of them, it is loaded piecemeal.
const ODD_SIDE: f64 = 8.0;
/// The part of the speed of other products that those with such rows come to: 0.17 to 0.3 with 128 rows of an odd
/// vocabulary.
const ODD_PART: f64 = 0.2;

/// Times of kernels on a device.
pub(super) struct Kernels<'a> {
    trace: &'a Trace,
    device: &'a Device,
    works: Vec<Work>,
    /// By type of number: its speed, its bytes, and whether it is a floating-point type.
    types: Vec<(Speed, f64, bool)>,
}

impl<'a> Kernels<'a> {
    pub(super) fn new(trace: &'a Trace, device: &'a Device) -> Self {
        let works = trace.ops.iter().map(|op| work(op)).collect();
        let kind = |dtype: &String| (speed(device, dtype), bytes(dtype), dtype.contains("float"));
        Self { trace, device, works, types: trace.dtypes.iter().map(kind).collect() }
    }

    /// The time of a call, in microseconds; 0 if it starts no kernel.
    pub(super) fn us(&self, call: &Call) -> f64 {
        let copies = self.crosses_link(call);
        if call.flops <= 0.0 && call.written == 0 && !copies {
            // A view, or a number that the program asks for.
            return 0.0;
        }
        let device = self.device;
        let kernel_us = device.kernel_us.value;
        let (speed, size) = self.numbers(call);
        let all = call.read.saturating_add(call.written) as f64;
        let (read, written) = (call.read as f64 / size, call.written as f64 / size);
        let moved = |bytes: f64| bytes / device.bandwidth() * 1e6;
        match self.works.get(call.op as usize) {
            Some(Work::Product) if call.flops > 0.0 => {
                let us = Product::from_work(call.flops, read, written).us(speed, device);
                let part = if speed.units && size < 4.0 && self.is_odd(call, size) { ODD_PART } else { 1.0 };
                (us / part).max(moved(all)) + kernel_us
            }
            Some(Work::Products) if call.flops > 0.0 => {
                Product::many_from_work(call.flops, read, written).us(speed, device).max(moved(all)) + kernel_us
            }
            Some(&Work::Convolution { backward }) if call.flops > 0.0 => {
                self.convolution_us(call, backward, speed, size)
            }
            Some(Work::Attention) if call.flops > 0.0 => {
                self.attention_us(call, speed, size).max(moved(all)) + kernel_us
            }
            Some(Work::Recurrent) => {
                let us = call.flops / (device.speed("float32") * RECURRENT_PART) * 1e6;
                us.max(moved(all)) + kernel_us
            }
            Some(Work::Copy) => match link_bytes(call) {
                0 => moved(self.beyond_cache(all, call)) + kernel_us,
                bytes => bytes as f64 / device.link_bytes_per_second.value.max(1.0) * 1e6 + kernel_us,
            },
            Some(&Work::Moves { times, traffic, kernels }) => {
                let bytes = match traffic {
                    Traffic::All => all,
                    Traffic::Chosen => 2.0 * call.written as f64,
                    Traffic::Written => call.written as f64,
                };
                times * moved(self.beyond_cache(bytes, call)) + kernels * kernel_us
            }
            _ => moved(all) + kernel_us,
        }
    }

    /// Whether a product has sides of which rows do not begin at addresses that matrix units load from at once. Storages
    /// tell the sides if they hold nothing else. In a forward pass the first one is the batch's, which does not matter.
    fn is_odd(&self, call: &Call, size: f64) -> bool {
        let numbers = |list: &[u32], back: usize| {
            let storage = list.len().checked_sub(back).map(|at| self.trace.storages[list[at] as usize].bytes);
            storage.unwrap_or(0) as f64 / size
        };
        let (first, second) = (numbers(self.trace.inputs(call), 2), numbers(self.trace.inputs(call), 1));
        let result = numbers(self.trace.outputs(call), 1);
        let sum = (call.flops / (2.0 * result.max(1.0))).round().max(1.0);
        let (rows, columns) = (first / sum, second / sum);
        if rows.fract() > 0.0 || columns.fract() > 0.0 || (rows * columns - result).abs() > 0.5 {
            return false;
        }
        let is_odd = |side: f64| side % ODD_SIDE > 0.0;
        is_odd(columns) || is_odd(sum) || (call.thread != 0 && is_odd(rows))
    }

    /// Whether a call goes from group to group of its rows, and waits until the device has told where they end: only for
    /// 16 bits there is a kernel that does all of them.
    pub(super) fn by_groups(&self, call: &Call) -> bool {
        self.trace.op_name(call).contains("_grouped_mm") && self.numbers(call).1 > 2.0
    }

    /// Whether a call copies from or to the host.
    pub(super) fn crosses_link(&self, call: &Call) -> bool {
        self.works.get(call.op as usize) == Some(&Work::Copy) && link_bytes(call) > 0
    }

    /// Lists of tensors are longer than the cache, whatever is in it.
    fn beyond_cache(&self, bytes: f64, call: &Call) -> f64 {
        let cached = CACHED * self.device.cache_bytes.value.max(0.0);
        if bytes >= 2.0 * cached || self.trace.op_name(call).contains("_foreach") {
            return bytes;
        }
        // Between what fits and twice that, ever less is still there.
        let part = if bytes <= cached { 0.0 } else { (bytes - cached) / cached };
        bytes * (CACHE_PART + (1.0 - CACHE_PART) * part)
    }

    /// How the numbers of a call are multiplied, and the bytes of one: of its shortest floating-point type.
    fn numbers(&self, call: &Call) -> (Speed, f64) {
        let float = |list: &[u32]| {
            let dtypes = list.iter().map(|&storage| self.trace.storages[storage as usize].dtype as usize);
            let floats = dtypes.filter_map(|dtype| self.types.get(dtype).filter(|kind| kind.2));
            floats.min_by(|one, other| one.1.total_cmp(&other.1)).map(|&(speed, size, _)| (speed, size))
        };
        float(self.trace.inputs(call))
            .or_else(|| float(self.trace.outputs(call)))
            .unwrap_or_else(|| (speed(self.device, "float32"), 4.0))
    }

    fn attention_us(&self, call: &Call, speed: Speed, size: f64) -> f64 {
        // Scores are rows x columns for each row of the query, and a tile that is not full takes as long as a full one.
        let query = self.trace.inputs(call).first().map_or(0, |&storage| self.trace.storages[storage as usize].bytes);
        let length = call.flops / (4.0 * (query as f64 / size).max(1.0));
        let full = (length / ATTENTION_TILE).ceil() * ATTENTION_TILE;
        let padding = if length >= 1.0 { (full / length).powi(2).min(4.0) } else { 1.0 };
        let part = if speed.units { HALF_ATTENTION } else { 1.0 };
        call.flops * padding / (speed.flops * self.device.attention_efficiency.value * part) * 1e6
    }

    /// A convolution is a product of the filters with a piece of the picture around every pixel. Kernels want channels
    /// last: pictures in the usual order are copied there and back, but for filters of one pixel.
    fn convolution_us(&self, call: &Call, backward: bool, speed: Speed, size: f64) -> f64 {
        let device = self.device;
        let numbers = |list: &[u32], at: usize| {
            let storage = list.get(at).map_or(0, |&storage| self.trace.storages[storage as usize].bytes);
            (storage as f64 / size).max(1.0)
        };
        let (inputs, outputs) = (self.trace.inputs(call), self.trace.outputs(call));
        let (picture, filters, result) = if backward {
            (numbers(inputs, 1), numbers(inputs, 2), numbers(inputs, 0))
        } else {
            (numbers(inputs, 0), numbers(inputs, 1), numbers(outputs, 0))
        };
        // The gradient of the first picture of a model is not wanted.
        let gradients = if backward && outputs.len() > 1 && numbers(outputs, 0) >= 0.9 * picture { 2.0 } else { 1.0 };
        let flops = call.flops / gradients;
        let sum = (flops / (2.0 * result)).max(1.0);
        let columns = (filters / sum).max(1.0);
        let pixels = (result / columns).max(1.0);
        let touched = (picture + result) * size;
        let moved = touched / device.bandwidth() * 1e6;
        let plain = (0.95..=1.05).contains(&(sum * pixels / picture));
        let begins = device.kernel_us.value * gradients * if plain { 2.0 } else { 4.0 };
        // Of one filter a channel: with as many channels as before, and the same number of pixels or more.
        if sum <= SPARSE && !plain && picture >= DEPTHWISE_PIXELS * result {
            let numbers = match (backward, gradients > 1.0) {
                (false, _) => result,
                (true, false) => DEPTHWISE_FILTERS * result,
                (true, true) => DEPTHWISE_FILTERS * result + DEPTHWISE_PICTURE * picture.max(result),
            };
            let us = 2.0 * (sum + DEPTHWISE_RESULT) * numbers / (device.speed("float32") * DEPTHWISE_PART) * 1e6;
            return us.max(gradients * moved) + device.kernel_us.value * gradients;
        }
        if sum <= FEW && !plain {
            let few = device.speed("float32") * FEW_PART;
            let passes = if sum <= SPARSE { SPARSE_PASSES } else { 1.0 };
            return gradients * (flops / few * 1e6).max(passes * moved) + begins;
        }
        // cuDNN may round 32-bit numbers to TF32, unless the program forbids it.
        let rounded = Speed { flops: device.speed("tf32").max(speed.flops), units: true };
        let speed = if speed.units { speed } else { rounded };
        let product = |rows: f64, columns: f64, sum: f64| Product { rows, columns, sum, count: 1.0 }.us(speed, device);
        let us = if backward {
            let of_filters = product(sum, columns, pixels);
            let of_picture = product(pixels, (picture / pixels).max(1.0), (flops / (2.0 * picture)).max(1.0));
            of_filters + (gradients - 1.0) * of_picture
        } else {
            product(pixels, columns, sum)
        };
        let part = device.convolution_efficiency.value.max(0.01) * if backward { BACKWARD_PART } else { 1.0 };
        let us = (us / part).max(1.15 * gradients * moved);
        us + if plain { 0.0 } else { device.convolution_copies.value * moved } + begins
    }
}

/// The bytes that a copy moves over the link; 0 if it stays on the device. Of what is on the host traces say nothing.
fn link_bytes(call: &Call) -> u64 {
    if call.read == 0 || call.written == 0 { call.read.max(call.written) } else { 0 }
}

fn speed(device: &Device, dtype: &str) -> Speed {
    Speed { flops: device.speed(dtype), units: !matches!(dtype, "float32" | "float64" | "") }
}

fn bytes(dtype: &str) -> f64 {
    match dtype {
        "float64" => 8.0,
        "float16" | "bfloat16" => 2.0,
        name if name.starts_with("float8") => 1.0,
        _ => 4.0,
    }
}

fn work(op: &str) -> Work {
    let name = op.split('.').nth(1).unwrap_or(op);
    if name.contains("convolution") {
        return Work::Convolution { backward: name.contains("backward") };
    }
    if name.contains("attention") {
        return Work::Attention;
    }
    if name.contains("_rnn") || name.contains("lstm") || name.contains("gru") {
        return Work::Recurrent;
    }
    if is_matrix_product(op) || name == "addmm_" {
        return if name.contains("bmm") { Work::Products } else { Work::Product };
    }
    if matches!(name, "copy_" | "_to_copy") {
        return Work::Copy;
    }
    let traffic = match name {
        "embedding" | "index" | "index_select" | "gather" | "take" | "nll_loss_forward" => Traffic::Chosen,
        "nll_loss_backward" => Traffic::Written,
        _ => Traffic::All,
    };
    let known = PASSES.iter().find(|(part, ..)| op.contains(part));
    let (times, kernels) = known.map_or((1.0, 1.0), |&(_, times, kernels)| (times, kernels));
    Work::Moves { times, traffic, kernels }
}
