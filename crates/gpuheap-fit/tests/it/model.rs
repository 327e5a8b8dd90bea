//! Traces of transformers, written as the tracer writes them.

use std::fmt::Write as _;

use gpuheap_fit::Trace;

/// A transformer that is trained with Adam.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) layers: usize,
    pub(crate) batch: u64,
    pub(crate) sequence: u64,
    pub(crate) width: u64,
    pub(crate) words: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self { layers: 6, batch: 8, sequence: 256, width: 512, words: 8000 }
    }
}

/// What a tracer would write, piece by piece.
#[derive(Default)]
struct Writer {
    bytes: Vec<u64>,
    class: Vec<&'static str>,
    module: Vec<i64>,
    name: Vec<String>,
    events: Vec<String>,
    ops: Vec<&'static str>,
}

impl Writer {
    fn storage(&mut self, bytes: u64, class: &'static str, module: i64, name: &str) -> usize {
        self.bytes.push(bytes);
        self.class.push(class);
        self.module.push(module);
        self.name.push(name.to_owned());
        self.bytes.len() - 1
    }

    fn make(&mut self, bytes: u64, class: &'static str, module: i64) -> usize {
        let id = self.storage(bytes, class, module, "");
        self.alloc(id);
        id
    }

    fn alloc(&mut self, id: usize) {
        self.events.push(format!("[\"alloc\",{id}]"));
    }

    fn free(&mut self, id: usize) {
        self.events.push(format!("[\"free\",{id}]"));
    }

    fn saved(&mut self, id: usize) {
        self.events.push(format!("[\"saved\",{id},0]"));
    }

    fn phase(&mut self, name: &str) {
        self.events.push(format!("[\"phase\",\"{name}\"]"));
    }

    fn op(&mut self, name: &'static str, module: i64, thread: u8, flops: u64, inputs: &[usize], outputs: &[usize]) {
        let op = self.ops.iter().position(|&op| op == name).unwrap_or_else(|| {
            self.ops.push(name);
            self.ops.len() - 1
        });
        let sum = |ids: &[usize]| ids.iter().map(|&id| self.bytes[id]).sum::<u64>();
        let (read, written) = (sum(inputs), sum(outputs));
        self.events.push(format!("[\"op\",{op},{module},{thread},{flops},{read},{written},{inputs:?},{outputs:?}]"));
    }
}

struct Layer {
    up: usize,
    down: usize,
    module: i64,
}

/// The trace as text.
#[expect(clippy::too_many_lines, reason = "one step of training, from its beginning to its end")]
#[expect(clippy::many_single_char_names, clippy::similar_names, reason = "as in the formulas")]
pub(crate) fn text(model: Model) -> String {
    let Model { layers, batch, sequence, width, words } = model;
    let mut w = Writer::default();
    let mut modules = vec![
        r#"{"name":"","class":"Transformer","parent":-1}"#.to_owned(),
        r#"{"name":"layers","class":"ModuleList","parent":0}"#.to_owned(),
        r#"{"name":"head","class":"Linear","parent":0}"#.to_owned(),
    ];
    let tokens = batch * sequence;
    let hidden = tokens * width * 4;
    w.phase("setup");
    let embedding = w.make(words * width * 4, "parameter", 0);
    let mut all = Vec::new();
    let mut parameters = vec![(embedding, words * width * 4)];
    for index in 0..layers {
        let module = i64::try_from(modules.len()).unwrap();
        modules.push(format!(r#"{{"name":"layers.{index}","class":"Layer","parent":1}}"#));
        modules.push(format!(r#"{{"name":"layers.{index}.mlp","class":"Linear","parent":{module}}}"#));
        let up = w.make(width * width * 16, "parameter", module + 1);
        let down = w.make(width * width * 16, "parameter", module + 1);
        parameters.extend([(up, width * width * 16), (down, width * width * 16)]);
        all.push(Layer { up, down, module });
    }
    let input = w.make(tokens * 8, "input", -1);
    let product = 8 * tokens * width * width;
    let mut states: Vec<usize> = Vec::new();
    let mut gradients: Vec<Option<usize>> = vec![None; parameters.len()];
    for step in 1..=2 {
        w.events.push(format!("[\"step\",{step}]"));
        w.phase("zero_grad");
        for gradient in gradients.iter_mut().filter_map(Option::take) {
            w.free(gradient);
        }
        w.phase("forward");
        w.events.push("[\"enter\",0,0]".to_owned());
        let mut x = w.make(hidden, "activation", 0);
        w.op("aten.embedding.default", 0, 0, 0, &[embedding, input], &[x]);
        let mut kept: Vec<[usize; 4]> = Vec::new();
        for layer in &all {
            let m = layer.module;
            w.events.push(format!("[\"enter\",{m},0]"));
            let scratch = w.make(hidden, "temporary", m);
            let normed = w.make(hidden, "activation", m);
            w.op("aten.native_layer_norm.default", m, 0, 0, &[x], &[normed, scratch]);
            w.free(scratch);
            w.saved(x);
            w.events.push(format!("[\"enter\",{},0]", m + 1));
            let wide = w.make(4 * hidden, "activation", m + 1);
            w.op("aten.addmm.default", m + 1, 0, product, &[normed, layer.up], &[wide]);
            w.saved(normed);
            let bent = w.make(4 * hidden, "activation", m + 1);
            w.op("aten.gelu.default", m + 1, 0, 0, &[wide], &[bent]);
            w.saved(wide);
            w.events.push(format!("[\"leave\",{},0]", m + 1));
            let out = w.make(hidden, "activation", m);
            w.op("aten.addmm.default", m, 0, product, &[bent, layer.down], &[out]);
            w.saved(bent);
            w.events.push(format!("[\"leave\",{m},0]"));
            kept.push([x, normed, wide, bent]);
            x = out;
        }
        w.events.push("[\"enter\",2,0]".to_owned());
        let scores = w.make(tokens * words * 4, "activation", 2);
        w.op("aten.mm.default", 2, 0, 2 * tokens * width * words, &[x, embedding], &[scores]);
        w.saved(x);
        w.events.push("[\"leave\",2,0]".to_owned());
        w.events.push("[\"leave\",0,0]".to_owned());
        w.phase("loss");
        let logs = w.make(tokens * words * 4, "activation", -1);
        w.op("aten._log_softmax.default", -1, 0, 0, &[scores], &[logs]);
        w.free(scores);
        w.saved(logs);
        let loss = w.make(4, "loss", -1);
        w.op("aten.nll_loss_forward.default", -1, 0, 0, &[logs, input], &[loss]);
        w.phase("backward");
        let d_logs = w.make(tokens * words * 4, "temporary", -1);
        w.op("aten.nll_loss_backward.default", -1, 1, 0, &[loss, logs], &[d_logs]);
        let d_scores = w.make(tokens * words * 4, "temporary", -1);
        w.op("aten._log_softmax_backward_data.default", -1, 1, 0, &[d_logs, logs], &[d_scores]);
        w.free(d_logs);
        w.free(logs);
        let mut d = w.make(hidden, "temporary", 2);
        w.op("aten.mm.default", 2, 1, 2 * tokens * width * words, &[d_scores, embedding], &[d]);
        let g = w.make(words * width * 4, "gradient", 0);
        w.op("aten.mm.default", 2, 1, 2 * tokens * width * words, &[d_scores, x], &[g]);
        gradients[0] = Some(g);
        w.free(d_scores);
        w.free(x);
        for (index, layer) in all.iter().enumerate().rev() {
            let m = layer.module;
            let [before, normed, wide, bent] = kept[index];
            w.events.push(format!("[\"enter\",{m},1]"));
            let d_bent = w.make(4 * hidden, "temporary", m);
            w.op("aten.mm.default", m, 1, product, &[d, layer.down], &[d_bent]);
            let g = w.make(width * width * 16, "gradient", m + 1);
            w.op("aten.mm.default", m, 1, product, &[d, bent], &[g]);
            gradients[2 + 2 * index] = Some(g);
            w.free(d);
            w.free(bent);
            let d_wide = w.make(4 * hidden, "temporary", m + 1);
            w.op("aten.gelu_backward.default", m + 1, 1, 0, &[d_bent, wide], &[d_wide]);
            w.free(d_bent);
            w.free(wide);
            let d_normed = w.make(hidden, "temporary", m);
            w.op("aten.mm.default", m, 1, product, &[d_wide, layer.up], &[d_normed]);
            let g = w.make(width * width * 16, "gradient", m + 1);
            w.op("aten.mm.default", m, 1, product, &[d_wide, normed], &[g]);
            gradients[1 + 2 * index] = Some(g);
            w.free(d_wide);
            w.free(normed);
            d = w.make(hidden, "temporary", m);
            w.op("aten.native_layer_norm_backward.default", m, 1, 0, &[d_normed, before], &[d]);
            w.free(d_normed);
            w.free(before);
            w.events.push(format!("[\"leave\",{m},1]"));
        }
        w.free(d);
        w.phase("optimizer");
        if step == 1 {
            for &(_, bytes) in &parameters {
                states.push(w.make(bytes, "optimizer", 0));
                states.push(w.make(bytes, "optimizer", 0));
            }
        }
        let scratch: Vec<usize> = parameters.iter().map(|&(_, bytes)| w.make(bytes, "temporary", -1)).collect();
        let inputs: Vec<usize> = parameters.iter().map(|&(id, _)| id).chain(states.iter().copied()).collect();
        w.op("aten._foreach_addcdiv_.ScalarList", -1, 0, 0, &inputs, &scratch);
        for id in scratch {
            w.free(id);
        }
        w.free(loss);
    }
    let total: u64 = parameters.iter().map(|&(_, bytes)| bytes).sum();
    let mut text = String::new();
    let names = |names: &[&str]| names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(",");
    let dtypes = vec!["float32"; w.bytes.len()];
    let parameter_names: Vec<&str> = w.name.iter().map(String::as_str).collect();
    write!(
        text,
        r#"{{"schema":"gpuheap.fit.trace/1","source":{{"make":"train.py:make","torch":"2.11.0","python":"3.12","how":"fake-cuda","notes":[]}},
"device_type":"cuda","batch":{{"size":{batch},"dims":{{"sequence":{sequence}}},"leaves":[]}},
"model":{{"parameters":{},"parameter_bytes":{total},"trainable_bytes":{total},"buffers_bytes":0}},
"optimizer":{{"class":"AdamW","foreach":true,"fused":false,"capturable":false,"state_per_parameter_bytes":8}},
"modules":[{}],"ops":[{}],
"storages":{{"bytes":{:?},"class":[{}],"module":{:?},"dtype":[{}],"name":[{}]}},
"events":[{}],"unknown":[]}}"#,
        total / 4,
        modules.join(","),
        names(&w.ops),
        w.bytes,
        names(&w.class),
        w.module,
        names(&dtypes),
        names(&parameter_names),
        w.events.join(",\n"),
    )
    .unwrap();
    text
}

/// The trace.
#[allow(dead_code, reason = "the example prints the text")]
pub(crate) fn trace(model: Model) -> Trace {
    gpuheap_fit::trace::parse(text(model).as_bytes()).unwrap()
}
