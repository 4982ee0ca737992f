"""A tiny random text model on disk, and the ways in which a checkpoint can be broken or odd."""

import json
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ecokv_cli.tiny import checkpoint

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)
CODE = """
import pathlib
from transformers import LlamaConfig, LlamaForCausalLM

pathlib.Path({marker!r}).touch()

class OwnConfig(LlamaConfig):
    model_type = "own_llama"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def build(folder, seed=1):
    """Two layers, 4 query heads on 2 KV heads of dimension 6."""
    torch.manual_seed(seed)
    ids = checkpoint.vocabulary()
    config = LlamaConfig(
        vocab_size=len(ids), hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, eos_token_id=ids["<|im_end|>"], pad_token_id=0, bos_token_id=None,
        max_position_embeddings=211,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    made = checkpoint.build_tokenizer()
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return Path(folder)


def copied(source, target):
    return Path(shutil.copytree(source, target))


def with_code_of_its_own(source, target, marker):
    """The model as a class that comes with the checkpoint; importing its code leaves a file at `marker`."""
    folder = copied(source, target)
    (folder / "own_code.py").write_text(CODE.format(marker=str(marker)))
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"model_type": "own_llama", "architectures": ["OwnModel"]}
    config["auto_map"] = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"}
    path.write_text(json.dumps(config))
    return folder


def as_hub_cache(home, name, revisions):
    """A hub cache that holds `revisions` (name of a branch to folder) of the model; returns the commits."""
    store = home / "hub" / f"models--{name.replace('/', '--')}"
    commits = {}
    for number, (revision, folder) in enumerate(revisions.items()):
        commit = commits[revision] = f"{number:x}" * 40
        shutil.copytree(folder, store / "snapshots" / commit)
        (store / "refs").mkdir(exist_ok=True)
        (store / "refs" / revision).write_text(commit)
    return commits
