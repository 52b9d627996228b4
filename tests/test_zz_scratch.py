import json, torch
from commands_for_tests import *
def last(r): return (r.code, [l for l in r.err.splitlines() if "rror" in l][-2:], [l[-200:] for l in r.text.splitlines() if "train_inner" in l][-1:])
def test_x(toy,train,run,checkpoints,tmp_path):
    for i,o in enumerate([["--l0-weight","nan"],["--l0-weight","inf"],["--gate-init","nan"],["--gate-init","inf"],["--gate-lr-scale","nan"],["--gate-lr-scale","inf"],["--gate-temperature","inf"],["--gate-temperature","nan"],["--gate-stretch=-inf,inf"],["--gate-stretch=nan,2"],["--quant-noise-pq","0.1","--quant-noise-pq-block-size","4"],["--l0-reduction","mean"],["--alive-heads","","--gate-heads","enc-self"],["--alive-heads","[1]"], ["--alive-heads", str(tmp_path)], ["--gate-heads",""], ["--freeze-dropout"],["--no-cross-attention","--gate-heads","enc-self"],["--store-ema"],["--encoder-layerdrop","0.5"]]):
        print(o, last(train(tmp_path/str(i),*GATED,*o,code=None)))
    a=train(tmp_path/"ca",*GATED,"--checkpoint-activations",updates=4,code=None); print("ca",last(a)) 
    if a.code==0:
        A=torch.load(tmp_path/"ca/checkpoint_last.pt",weights_only=False)["model"]; B=torch.load(checkpoints["gated"],weights_only=False)["model"]
        print(A.keys()==B.keys(), max((A[k]-B[k]).abs().max().item() for k in B if k in A))
        print(last(run("fairseq-generate", toy.data,*EVALUATION,"--path",tmp_path/"ca/checkpoint_last.pt",code=None)))
    g=checkpoints["gated"]
    run("headgates","show",g,"--out",tmp_path/"h.json")
    print("gated->fixed",last(train(tmp_path/"f1","--finetune-from-model",g,"--alive-heads",tmp_path/"h.json",code=None)))
    print("gated->plain",last(train(tmp_path/"f2","--finetune-from-model",g,code=None)))
    print("gated->enc-self",last(train(tmp_path/"f3","--finetune-from-model",g,*GATED,"--gate-heads","enc-self",code=None)))
    print("gated->stock",last(train(tmp_path/"f4","--finetune-from-model",g,arch="transformer",code=None)))
    print("fixed->gated",last(train(tmp_path/"f5","--finetune-from-model",checkpoints["fixed"],*GATED,code=None)))
    train(tmp_path/"st",arch="transformer")
    print("stock nouser",last(run("fairseq-generate",toy.data,"--cpu","--path",tmp_path/"st/checkpoint_last.pt",code=None)))
    print("stock resume no user", last(train(tmp_path/"st",arch="transformer",updates=4,code=None)))
    (tmp_path/"m.json").write_text(json.dumps(ALIVE))
    c={"common": {"cpu": True, "user_dir": str(USER_DIR)},"task": {"_name": "translation", "data": str(toy.data)},
        "model": {"_name": "transformer_head_gates", **TOY_MODEL, "alive_heads": str(tmp_path/"m.json")},
        "criterion": {"_name": "label_smoothed_cross_entropy"}, "optimizer": {"_name": "adam"},"lr_scheduler": {"_name": "fixed"},
        "dataset": {"max_tokens": 500},"optimization": {"max_update": 2, "lr": [0.005]}, "checkpoint": {"save_dir": str(tmp_path / "save")}}
    (tmp_path/"toy.yaml").write_text(json.dumps(c))
    print("hydra file", last(run("fairseq-hydra-train","--config-dir",tmp_path,"--config-name","toy",code=None)))
    (tmp_path/"m.json").unlink()
    print("hydra gen", last(run("fairseq-generate", toy.data,*EVALUATION,"--path",tmp_path/"save/checkpoint_last.pt",code=None)))
    print("hydra nouser", last(run("fairseq-generate", toy.data,"--cpu","--path",tmp_path/"save/checkpoint_last.pt",code=None)))
    c["model"]["alive_heads"]=None; c["model"]["gate_heads"]="enc-slef"; (tmp_path/"toy2.yaml").write_text(json.dumps(c))
    print("hydra bad", last(run("fairseq-hydra-train","--config-dir",tmp_path,"--config-name","toy2",code=None)))
    c["model"]["alive_heads"]=None; c["model"]["gate_haeds"]="enc-self"; (tmp_path/"toy3.yaml").write_text(json.dumps(c))
    print("hydra typo key", last(run("fairseq-hydra-train","--config-dir",tmp_path,"--config-name","toy3",code=None)))
