import gc, os, random, functools, copy, collections, torch, torch.nn as nn, torch.nn.functional as F
from concurrent.futures import ThreadPoolExecutor
from common_b import main
D='cuda'
def net(w=1024,d=3,o=10): return nn.Sequential(*[l for _ in range(d) for l in (nn.Linear(w,w),nn.GELU())],nn.Linear(w,o)).to(D)
def batch(n=256,w=1024,o=10): return torch.randn(n,w,device=D),torch.randint(0,o,(n,),device=D)
def train(mark,each=None,steps=50,model=None,opt=None,n=256):
    m=model or net(); o=(opt or torch.optim.AdamW)(m.parameters(),1e-3)
    for i in range(steps):
        x,y=batch(n); out=m(x); loss=F.cross_entropy(out,y); o.zero_grad(); loss.backward(); o.step()
        if each: each(i,m,o,x,out,loss)
        mark()
# the names of STEPS: leaks
def best_models(mark):
    best=[]
    def each(i,m,o,x,out,loss):
        if i%8==0: best.append(copy.deepcopy(m.state_dict()))
    train(mark,each,steps=64)
class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x):
        out=torch.tanh(x); ctx.out=out   # should be save_for_backward: out -> grad_fn -> ctx -> out
        return out
    @staticmethod
    def backward(ctx,g): return g*(1-ctx.out*ctx.out)
def ctx_attr(mark):
    gc.disable(); a=net(o=1024); b=nn.Linear(1024,10).to(D); o=torch.optim.AdamW([*a.parameters(),*b.parameters()],1e-3)
    for i in range(40):
        x,y=batch(512); h=Tanh.apply(a(x)); loss=F.cross_entropy(b(h),y); o.zero_grad(); loss.backward(); o.step(); mark()
class Box: pass
def tangle(x):
    b=Box(); b.x=x.detach()*2; b.me=b
def cycle_nogc(mark):
    gc.disable(); train(mark,lambda i,m,o,x,out,loss: tangle(x),steps=45,n=512)
def double_backward(mark):
    gc.disable(); m=net(); o=torch.optim.SGD(m.parameters(),1e-5)
    for i in range(40):
        x,y=batch(); loss=F.cross_entropy(m(x),y); loss.backward(create_graph=True); o.step(); mark()   # gradients are never cleared: each sum keeps the graph of the one before
def double_backward_copies(mark):
    gc.disable(); m=net(); o=torch.optim.SGD(m.parameters(),1e-3)
    for i in range(40):
        x,y=batch(); fast=copy.deepcopy(m); loss=F.cross_entropy(fast(x),y); loss.backward(create_graph=True)   # fast -> grad -> graph -> fast
        for p,q in zip(m.parameters(),fast.parameters()): p.grad=q.grad.detach().clone()
        o.step(); o.zero_grad(); mark()
def every_tenth(mark):
    kept=[]
    def each(i,m,o,x,out,loss):
        if i%10==0: kept.append(out.detach().clone())
    train(mark,each,steps=100,n=4096)
def grads_logged(mark):
    grads=[]
    train(mark,lambda i,m,o,x,out,loss: grads.append(m[0].weight.grad.clone()),steps=45)
class Positions(nn.Module):
    def __init__(s,w=256): super().__init__(); s.freq=nn.Buffer(torch.exp(-torch.arange(0,w,2,device=D)/w*9))
    @functools.lru_cache(maxsize=None)
    def table(s,n):
        a=torch.arange(n,device=D)[:,None]*s.freq
        return torch.cat([a.sin(),a.cos()],1)
def method_cache(mark):
    pos=Positions(); w=nn.Linear(256,256).to(D); o=torch.optim.AdamW(w.parameters(),1e-3); lengths=random.sample(range(200,2000),60)
    for n in lengths:
        x=torch.randn(8,n,256,device=D)+pos.table(n); l=w(x).square().mean(); o.zero_grad(); l.backward(); o.step(); mark()
def tensor_hook(mark):
    seen=[]; m=net(); o=torch.optim.AdamW(m.parameters(),1e-3)
    for i in range(45):
        x,y=batch(4096); out=m(x); out.register_hook(lambda g: seen.append(g)); loss=F.cross_entropy(out,y); o.zero_grad(); loss.backward(); o.step(); mark()
# the names of STEPS: the others
def dataset_on_gpu(mark):
    data=torch.randn(20000,1024,device=D); labels=torch.randint(0,10,(20000,),device=D); m=net(); o=torch.optim.AdamW(m.parameters(),1e-3)
    for i in range(50):
        j=torch.randint(0,20000,(512,),device=D); x,y=data[j],labels[j]; loss=F.cross_entropy(m(x),y); o.zero_grad(); loss.backward(); o.step(); mark()
def ema(mark):
    avg=[]
    def each(i,m,o,x,out,loss):
        if i==0: avg.extend(p.detach().clone() for p in m.parameters())
        else:
            for a,p in zip(avg,m.parameters()): a.lerp_(p.detach(),0.01)
    train(mark,each,steps=45)
def gc_sawtooth(mark):
    gc.disable()
    def each(i,m,o,x,out,loss):
        tangle(x)
        if i%15==14: gc.collect()
    train(mark,each,steps=75,n=1024)
def kv_cache(mark):
    qkv=nn.Linear(1024,3072).to(D); k=v=None
    with torch.no_grad():
        for i in range(100):
            x=torch.randn(16,1,1024,device=D); q,a,b=qkv(x).chunk(3,-1)
            k=a if k is None else torch.cat([k,a],1)[:,-40:]; v=b if v is None else torch.cat([v,b],1)[:,-40:]
            y=F.scaled_dot_product_attention(q,k,v); mark()
def kv_cache_reset(mark):
    qkv=nn.Linear(1024,3072).to(D); keys=[]; values=[]
    with torch.no_grad():
        for i in range(100):
            x=torch.randn(16,1,1024,device=D); q,a,b=qkv(x).chunk(3,-1); keys.append(a.clone()); values.append(b.clone())
            y=F.scaled_dot_product_attention(q,torch.cat(keys,1),torch.cat(values,1))
            if len(keys)==40: keys.clear(); values.clear()   # the sequence is full: the next one begins
            mark()
def param_groups(mark):
    m=net(d=5)
    for p in m.parameters(): p.requires_grad_(False)
    o=torch.optim.AdamW(m[10].requires_grad_().parameters(),1e-3); thaw={5:8,10:6,18:4,26:2}
    for i in range(50):
        if i in thaw: o.add_param_group(dict(params=list(m[thaw[i]].requires_grad_().parameters())))
        x,y=batch(); loss=F.cross_entropy(m(x),y); o.zero_grad(); loss.backward(); o.step(); mark()
def new_optimizer(mark):
    m=net()
    for i in range(50):
        if i%10==0: o=torch.optim.AdamW(m.parameters(),1e-3/(1+i))
        x,y=batch(); loss=F.cross_entropy(m(x),y); o.zero_grad(); loss.backward(); o.step(); mark()
def periodic_eval(mark):
    def each(i,m,o,x,out,loss):
        if i%10==9:
            with torch.no_grad(): outs=torch.cat([m(batch(2048)[0]) for _ in range(8)])
            outs.argmax(1).float().mean().item()
    train(mark,each,steps=60)
def side_stream(mark):
    side=torch.cuda.Stream(); m=net()
    def statistics():
        with torch.cuda.stream(side):
            parts=[torch.randn(16384,8192,device=D) for _ in range(3)]; s=sum(p.square().mean() for p in parts)
        torch.cuda.current_stream().wait_stream(side); return s.item()
    statistics(); train(mark,model=m,steps=45)
# more
def tensor_hook_clone(mark):
    seen=[]; m=net(); o=torch.optim.AdamW(m.parameters(),1e-3)
    def save(g): seen.append(g.clone())
    for i in range(45):
        x,y=batch(4096); out=m(x); out.register_hook(save); loss=F.cross_entropy(out,y); o.zero_grad(); loss.backward(); o.step(); mark()
def double_backward_cleared(mark):
    gc.disable(); m=net(); o=torch.optim.SGD(m.parameters(),1e-3)
    for i in range(40):
        x,y=batch(); loss=F.cross_entropy(m(x),y); loss.backward(create_graph=True); o.step()
        for p in m.parameters(): p.grad=None
        mark()
def amp_cycle(mark):
    m=net(); o=torch.optim.SGD(m.parameters(),1e-2,momentum=0.9)
    for i in range(45):
        x,y=batch(1024)
        with torch.autocast('cuda',dtype=torch.bfloat16): loss=F.cross_entropy(m(x),y)
        o.zero_grad(); loss.backward(); o.step(); mark()
def amp_fp16_scaler(mark):
    m=net(); o=torch.optim.AdamW(m.parameters(),1e-3); sc=torch.amp.GradScaler('cuda')
    for i in range(45):
        x,y=batch(1024)
        with torch.autocast('cuda',dtype=torch.float16): loss=F.cross_entropy(m(x),y)
        o.zero_grad(); sc.scale(loss).backward(); sc.step(o); sc.update(); mark()
def sgd_momentum(mark):
    losses=[]
    train(mark,lambda i,m,o,x,out,loss: losses.append(loss.item()),steps=45,opt=functools.partial(torch.optim.SGD,momentum=0.9))
def accum_outputs(mark):
    m=net(); o=torch.optim.AdamW(m.parameters(),1e-3); outs=[]
    for i in range(60):
        x,y=batch(2048); out=m(x); (F.cross_entropy(out,y)/4).backward(); outs.append(out)
        if i%4==3: o.step(); o.zero_grad()
        mark()
def two_phase(mark):
    m=net(); o=torch.optim.AdamW(m.parameters(),1e-3)
    for i in range(40):
        x,y=batch(512); loss=F.cross_entropy(m(x),y); o.zero_grad(); loss.backward(); o.step(); mark()
    m.eval(); right=0
    with torch.no_grad():
        for i in range(40):
            x,y=batch(512); right+=(m(x).argmax(1)==y).sum().item(); mark()
def prefetch_queue(mark):
    side=torch.cuda.Stream(); q=collections.deque(); host=[torch.randn(512,1024).pin_memory() for _ in range(8)]
    def fetch(i):
        with torch.cuda.stream(side):
            x=host[i%8].to(D,non_blocking=True); return (x-x.mean())/x.std()
    m=net(); o=torch.optim.AdamW(m.parameters(),1e-3); main_stream=torch.cuda.current_stream()
    for i in range(4): q.append(fetch(i))
    for i in range(60):
        main_stream.wait_stream(side); x=q.popleft(); x.record_stream(main_stream); y=torch.randint(0,10,(512,),device=D)
        loss=F.cross_entropy(m(x),y); o.zero_grad(); loss.backward(); o.step(); del x; q.append(fetch(i+4)); mark()
def few_steps(mark): train(mark,steps=5)
def few_steps_leak(mark):
    kept=[]
    train(mark,lambda i,m,o,x,out,loss: kept.append(x.clone()),steps=5,n=2048)
def layers(x,ws):
    for w in ws: x=torch.tanh(x@w)
    return x
def functional(mark,kept=None):
    ws=[(torch.randn(1024,1024,device=D)*0.03).requires_grad_() for _ in range(4)]
    for i in range(50):
        x,y=batch(512); out=layers(x,ws); loss=F.cross_entropy(out,y); loss.backward()
        with torch.no_grad():
            for w in ws: w-=1e-2*w.grad; w.grad=None
        if kept is not None: kept.append(out)
        mark()
def functional_leak(mark): functional(mark,[])
def infer_variable(mark):
    m=net(2048,4).eval(); counts=[]
    with torch.no_grad():
        for i in range(60):
            x=torch.randn(random.randrange(16,4096),2048,device=D); counts.append(m(x).argmax(1).bincount(minlength=10).tolist()); mark()
def infer_varlen(mark):
    e=nn.Embedding(32000,512).to(D).eval(); w=nn.Linear(512,1536).to(D).eval(); head=nn.Linear(512,32000).to(D).eval()
    with torch.no_grad():
        for i in range(60):
            n=random.randrange(64,3000); x=e(torch.randint(0,32000,(4,n),device=D)); q,k,v=w(x).chunk(3,-1)
            a=(q@k.transpose(1,2)/22.6).softmax(-1); y=head(a@v); y.argmax(-1).cpu(); del x,q,k,v,a,y; mark()
def cpu_logits(mark):
    m=net(o=5000).eval(); logits=[]
    with torch.no_grad():
        for i in range(40): logits.append(m(batch(64)[0]).cpu()); mark()
def random_pool(mark):
    pool=[]
    def each(i,m,o,x,out,loss):
        pool.append(x.clone())
        if len(pool)>20: pool.pop(random.randrange(len(pool)))
    train(mark,each,steps=120,n=512)
def slow_fill(mark):
    recent=collections.deque(maxlen=30)
    train(mark,lambda i,m,o,x,out,loss: recent.append(out.detach().clone()),steps=100,n=4096)
def gc_auto(mark):
    log=[]
    def each(i,m,o,x,out,loss):
        tangle(x); log.extend({'step':i,'part':k} for k in range(40))   # enough objects that the collector runs by itself
    train(mark,each,steps=75,n=1024)
def gan_two_opt(mark):
    g,d=net(512,2,512),net(512,2,1); og=torch.optim.Adam(g.parameters(),2e-4); od=torch.optim.Adam(d.parameters(),2e-4); curve=[]
    for i in range(50):
        real=torch.randn(1024,512,device=D); fake=g(torch.randn(1024,512,device=D))
        ld=F.softplus(-d(real)).mean()+F.softplus(d(fake.detach())).mean(); od.zero_grad(); ld.backward(); od.step()
        lg=F.softplus(-d(fake)).mean(); og.zero_grad(); lg.backward(); og.step(); curve.append((ld.item(),lg.item())); mark()
def lbfgs(mark):
    m=net(512,2); o=torch.optim.LBFGS(m.parameters(),lr=0.05,max_iter=2,history_size=15); x,y=batch(2048,512)
    def closure():
        o.zero_grad(); l=F.cross_entropy(m(x),y); l.backward(); return l
    for i in range(60): o.step(closure); mark()
def fit(mark,lr):
    m=net(); o=torch.optim.AdamW(m.parameters(),lr)
    for i in range(8):
        x,y=batch(); loss=F.cross_entropy(m(x),y); o.zero_grad(); loss.backward(); o.step(); mark()
    return m,loss.item()
def model_sweep(mark):
    best=None
    for t in range(8):
        m,l=fit(mark,1e-3/(t+1))
        if best is None or l<best: best=l
        del m
def model_sweep_leak(mark):
    results=[]
    for t in range(8): results.append((fit(mark,1e-3/(t+1)),t))
def checkpointed(mark):
    from torch.utils.checkpoint import checkpoint
    m=net(d=6); o=torch.optim.AdamW(m.parameters(),1e-3)
    for i in range(40):
        x,y=batch(2048); h=x
        for l in m: h=checkpoint(l,h,use_reentrant=False)
        loss=F.cross_entropy(h,y); o.zero_grad(); loss.backward(); o.step(); mark()
def compiled_train(mark):
    m=net(); c=torch.compile(m); o=torch.optim.AdamW(m.parameters(),1e-3)
    for i in range(45):
        x,y=batch(1024); loss=F.cross_entropy(c(x),y); o.zero_grad(); loss.backward(); o.step(); mark()
def serve(mark,kept=None):
    m=net(o=1000).eval()
    def handle(i):
        with torch.no_grad():
            p=m(torch.randn(random.randrange(64,512),1024,device=D)).softmax(-1)
            if kept is not None: kept[i]=p.topk(50)
            return p.argmax(1).tolist()
    with ThreadPoolExecutor(3) as pool:
        for a in range(0,180,3):
            for f in [pool.submit(handle,i) for i in range(a,a+3)]: f.result()
            mark()
def server_threads(mark): serve(mark)
def server_threads_leak(mark): serve(mark,{})
def ddp1(mark):
    import torch.distributed as dist, tempfile
    os.environ.setdefault('NCCL_SOCKET_IFNAME','lo'); dist.init_process_group('nccl',init_method='file://'+tempfile.mktemp(),rank=0,world_size=1)
    m=nn.parallel.DistributedDataParallel(net(),device_ids=[0]); o=torch.optim.AdamW(m.parameters(),1e-3)
    for i in range(40):
        x,y=batch(); loss=F.cross_entropy(m(x),y); o.zero_grad(); loss.backward(); o.step(); mark()
def caught_oom(mark):
    m=net(2048,4); o=torch.optim.AdamW(m.parameters(),1e-4); n=8192; skipped=0
    def step(n):
        x,y=batch(n,2048); loss=F.cross_entropy(m(x),y); o.zero_grad(); loss.backward(); o.step(); return loss.item()
    for i in range(45):
        try:
            step(n)
            if not skipped and i%3==2: n+=8192
        except torch.OutOfMemoryError:
            skipped+=1; n//=2; o.zero_grad(); torch.cuda.empty_cache(); print('caught at step',i,'next batch',n)
        mark()
def leak_oom(mark):
    m=net(2048,3); o=torch.optim.AdamW(m.parameters(),1e-4); kept=[]
    for i in range(200):
        x,y=batch(4096,2048); h=m[:-1](x); loss=F.cross_entropy(m[-1](h),y); o.zero_grad(); loss.backward(); o.step(); kept.append(h.detach()); mark()
# second run
def late_leak(mark):
    kept=[]
    def each(i,m,o,x,out,loss):
        if i>=40: kept.append(x.clone())   # switched on half-way
    train(mark,each,steps=80,n=512)
def two_leaks(mark):
    outs=[]; sizes={}
    def mask(n):
        if n not in sizes: sizes[n]=torch.ones(n,n,device=D).tril()
        return sizes[n]
    def each(i,m,o,x,out,loss):
        outs.append(out.detach())
        if i%2: mask(300+i)
    train(mark,each,steps=60,n=4096)
def loss_detached(mark):
    losses=[]
    train(mark,lambda i,m,o,x,out,loss: losses.append(loss.detach()),steps=60)
def mse_pins(mark):
    m=net(512,2,512); o=torch.optim.AdamW(m.parameters(),1e-3); losses=[]
    for i in range(50):
        x=torch.randn(1024,512,device=D); loss=F.mse_loss(m(x),x); o.zero_grad(); loss.backward(); o.step(); losses.append(loss.detach()); mark()
def epoch_outputs(mark):
    outs=[]
    def each(i,m,o,x,out,loss):
        outs.append(out.detach())
        if i%15==14: torch.cat(outs).mean().item(); outs.clear()
    train(mark,each,steps=75,n=4096)
def stream_leak(mark):
    side=torch.cuda.Stream(); kept=[]
    def features(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side): f=(x*x).mean(1,keepdim=True)*x
        torch.cuda.current_stream().wait_stream(side); return f
    train(mark,lambda i,m,o,x,out,loss: kept.append(features(x)),steps=50)
def leak_and_frag(mark):
    m=net(2048,4); o=torch.optim.SGD(m.parameters(),1e-3); kept=[]
    for i in range(60):
        x,y=batch(random.randrange(500,20000),2048); out=m(x); l=F.cross_entropy(out,y); o.zero_grad(); l.backward(); o.step(); kept.append(out.detach().topk(3)); del x,y,l,out; mark()
def cut_trace_leak(mark):
    kept=[]
    train(mark,lambda i,m,o,x,out,loss: kept.append(x.clone()),steps=80)
def cut_trace_healthy(mark): train(mark,steps=80)
def late_recording_leak(mark):
    kept=[]
    train(mark,lambda i,m,o,x,out,loss: kept.append(x.clone()),steps=60)
def late_recording_healthy(mark): train(mark,steps=60)
def growing_sequences(mark):
    e=nn.Embedding(1000,256).to(D); w=nn.Linear(256,768).to(D); h=nn.Linear(256,1000).to(D); o=torch.optim.AdamW([*e.parameters(),*w.parameters(),*h.parameters()],1e-3)
    for i in range(60):
        t=torch.randint(0,1000,(4,64+16*i),device=D); q,k,v=w(e(t)).chunk(3,-1); y=h((q@k.transpose(1,2)/16).softmax(-1)@v)
        l=F.cross_entropy(y.flatten(0,1),t.flatten()); o.zero_grad(); l.backward(); o.step(); mark()
def cat_history(mark):
    past=torch.empty(0,10,device=D)
    def each(i,m,o,x,out,loss):
        nonlocal past
        past=torch.cat([past,out.detach()])
    train(mark,each,steps=60,n=4096)
def varlen_train(mark):
    m=net(2048,4); o=torch.optim.SGD(m.parameters(),1e-3)
    for i in range(60):
        x,y=batch(random.randrange(500,20000),2048); l=F.cross_entropy(m(x),y); o.zero_grad(); l.backward(); o.step(); del x,y,l; mark()
def oom_retained(mark):
    m=net(2048,4); o=torch.optim.AdamW(m.parameters(),1e-4); n=8192; errors=[]
    def step(n):
        x,y=batch(n,2048); loss=F.cross_entropy(m(x),y); o.zero_grad(); loss.backward(); o.step(); return loss.item()
    for i in range(45):
        try:
            step(n)
            if not errors and i%3==2: n+=8192
        except torch.OutOfMemoryError as e: errors.append(e); n=2048
        mark()
from wild.train_classifier import main as classifier
from wild.trainer import main as nested_trainer
from wild.generate import main as generation
from wild.frameworks import lightning_main, hf_main
L=lambda run,cause,grows,**kw: dict(run=run,verdict='leak',cause=cause,grows=grows,**kw)
H=lambda run,cause,**kw: dict(run=run,verdict='healthy',cause=cause,**kw)
S=dict(
 best_models=L(best_models,'a list keeps a copy of the weights every eighth step','each'),
 ctx_attr=L(ctx_attr,'a custom function keeps its output on ctx, a cycle through the graph','forward'),
 cycle_nogc=L(cycle_nogc,'reference cycles hold tensors while the collector is off','tangle'),
 double_backward=L(double_backward,'gradients with a graph are never cleared: parameter, gradient, graph, parameter','double_backward'),
 double_backward_copies=L(double_backward_copies,'a copy of the model per step stays in the cycle parameter, gradient, graph, parameter','double_backward_copies'),
 every_tenth=L(every_tenth,'a list keeps a clone of the outputs every tenth step','each'),
 grads_logged=L(grads_logged,'a list keeps the gradient of a layer every step','<lambda>'),
 method_cache=L(method_cache,'an unbounded lru_cache on a method keeps a tensor per new length','table'),
 tensor_hook=L(tensor_hook,'a tensor hook appends the gradient to a list','tensor_hook'),
 dataset_on_gpu=H(dataset_on_gpu,'the whole data set lies on the GPU from the start'),
 ema=H(ema,'an averaged copy of the weights, made once and updated in place'),
 gc_sawtooth=dict(run=gc_sawtooth,verdict='sawtooth',cause='reference cycles hold tensors until gc.collect() every 15 steps',grows='tangle'),
 kv_cache=H(kv_cache,'a cache of keys and values grows to 40 entries and is trimmed'),
 kv_cache_reset=H(kv_cache_reset,'a cache of keys and values grows to 40 entries and is emptied'),
 param_groups=H(param_groups,'layers are unfrozen one by one: gradients and Adam state appear in a few steps'),
 new_optimizer=H(new_optimizer,'every tenth step a new optimizer takes the place of the old one'),
 periodic_eval=H(periodic_eval,'every tenth step an evaluation keeps its outputs and drops them'),
 side_stream=dict(run=side_stream,verdict='stranded',cause='a one-shot computation on a side stream leaves its cached memory there'),
 tensor_hook_clone=L(tensor_hook_clone,'a tensor hook appends a clone of the gradient to a list','save'),
 double_backward_cleared=H(double_backward_cleared,'create_graph=True, but the gradients are set to None each step'),
 amp_cycle=H(amp_cycle,'autocast to bfloat16 with SGD and momentum'),
 amp_fp16_scaler=H(amp_fp16_scaler,'autocast to float16 with a gradient scaler'),
 sgd_momentum=H(sgd_momentum,'SGD with momentum; losses are kept as numbers'),
 accum_outputs=L(accum_outputs,'gradient accumulation; a list keeps the outputs of every micro-batch','accum_outputs'),
 two_phase=H(two_phase,'training, then only evaluation'),
 prefetch_queue=H(prefetch_queue,'a queue of four batches is filled on a side stream, with record_stream'),
 few_steps=H(few_steps,'only five steps'),
 few_steps_leak=L(few_steps_leak,'a list keeps every batch, but only five steps are seen','<lambda>'),
 functional=H(functional,'no module and no optimizer: raw tensors and manual SGD'),
 functional_leak=L(functional_leak,'raw tensors and manual SGD; a list keeps the outputs of every step','layers'),
 infer_variable=H(infer_variable,'inference with batches of varying size'),
 infer_varlen=dict(run=infer_varlen,verdict='fragmentation',cause='inference with sequences of varying length'),
 cpu_logits=H(cpu_logits,'evaluation moves the logits to the host'),
 random_pool=H(random_pool,'a pool of 20 with random eviction'),
 slow_fill=H(slow_fill,'a bounded queue of 30 fills and stays'),
 gc_auto=dict(run=gc_auto,verdict='sawtooth',cause='reference cycles hold tensors until the collector runs by itself',grows='tangle'),
 gan_two_opt=H(gan_two_opt,'two models with an optimizer each'),
 lbfgs=H(lbfgs,'the history of L-BFGS fills to its limit of 15'),
 model_sweep=H(model_sweep,'eight models, one after the other, each dropped'),
 model_sweep_leak=L(model_sweep_leak,'a list of results keeps every trained model','net'),
 checkpointed=H(checkpointed,'activation checkpointing'),
 compiled_train=H(compiled_train,'torch.compile'),
 server_threads=H(server_threads,'requests are served by three threads'),
 server_threads_leak=L(server_threads_leak,'a dictionary keeps part of every answer on the GPU','handle'),
 ddp1=H(ddp1,'DistributedDataParallel with one process'),
 caught_oom=H(caught_oom,'an out-of-memory error is caught, training goes on with a smaller batch',cap_gib=4),
 leak_oom=L(leak_oom,'a list keeps the hidden layer of every step until memory runs out','leak_oom',cap_gib=3,until_oom=True),
 running_loss=L(lambda mark: classifier(mark,'retain'),'total_loss += loss after backward(retain_graph=True) keeps the graph of every step','forward'),
 running_loss_item=H(lambda mark: classifier(mark,'item'),'total_loss += loss.item()'),
 running_loss_freed=H(lambda mark: classifier(mark,'freed'),'total_loss += loss after a plain backward(): the graph stays, but its buffers are gone'),
 eval_graph=L(lambda mark: classifier(mark,'eval'),'evaluation sums losses without no_grad, so the graph of every batch stays','forward'),
 trainer_class=H(lambda mark: nested_trainer(mark,False),'a nested trainer class with callbacks'),
 trainer_leak=L(lambda mark: nested_trainer(mark,True),'a trainer class keeps the outputs of every training step','forward'),
 generate_kept=L(lambda mark: generation(mark,True),'generation keeps the logits of every call','generate'),
 generate_loop=H(lambda mark: generation(mark,False),'generation keeps nothing'),
 lightning=H(lambda mark: lightning_main(mark,False),'Lightning'),
 lightning_leak=L(lambda mark: lightning_main(mark,True),'a Lightning module keeps the logits of every training step','training_step'),
 hf_trainer=H(lambda mark: hf_main(mark,False),'Transformers Trainer'),
 hf_trainer_leak=L(lambda mark: hf_main(mark,True),'a Transformers Trainer subclass keeps the logits of every step','compute_loss'),
 late_leak=L(late_leak,'a list begins to keep batches at step 40','each'),
 two_leaks=L(two_leaks,'outputs kept every step, and a cache keyed by shape','mask'),
 loss_detached=L(loss_detached,'a list keeps the detached loss of every step: one 512-byte block','<lambda>'),
 mse_pins=L(mse_pins,'a list keeps the detached loss, and the scalar of mse_loss pins a buffer of the size of its input','mse_pins'),
 epoch_outputs=H(epoch_outputs,'outputs are gathered for an epoch of 15 steps and dropped'),
 stream_leak=L(stream_leak,'a list keeps features made on a side stream','features'),
 leak_and_frag=L(leak_and_frag,'a list keeps top-k results, while batches of varying size fragment the cache','leak_and_frag'),
 cut_trace_leak=L(cut_trace_leak,'a list keeps every batch; the ring of events lost its start','<lambda>',max_entries=4000),
 cut_trace_healthy=H(cut_trace_healthy,'the ring of events lost its start',max_entries=4000),
 late_recording_leak=L(late_recording_leak,'a list keeps every batch; recording began after step 10','<lambda>',record_from=10),
 late_recording_healthy=H(late_recording_healthy,'recording began after step 10',record_from=10),
 growing_sequences=H(growing_sequences,'sequences grow by plan; nothing outlives its step'),
 cat_history=L(cat_history,'a history of outputs is joined with cat every step','each'),
 varlen_train=dict(run=varlen_train,verdict='fragmentation',cause='reserved grows with odd sizes while allocated is flat'),
 oom_retained=H(oom_retained,'a caught out-of-memory error is kept once, with its frames and their tensors; training goes on',cap_gib=4),
)
if __name__=='__main__': main(S)
