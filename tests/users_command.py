"""The README's command, `torchrun --nproc-per-node 2 train.py --backbone qwen2.5-vl-7b`, without a network and without GPUs.

The hub and COCO's server are processes of this machine. The model has the 7B's configuration, tokenizer and processor, but four
narrow layers with random weights; COCO has forty images; steps and answers are few. All else is what a user gets, on two gloo
ranks: each archive and each file of the model is fetched once, a step has one prompt a rank, and pictures are drawn at every
checkpoint. With --memory, rank 1 runs out of it in step 2, and the job ends.

python tests/users_command.py [--memory]      (pytest does not collect it: it needs ../shared/data, and a minute)
"""

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import test_coco  # noqa: E402
import test_hub  # noqa: E402
from conftest import SHARED  # noqa: E402
from test_families import shrink  # noqa: E402

IMAGES, MODEL = 40, "Qwen/Qwen2.5-VL-7B-Instruct"
SMALL = ["--steps", "3", "--save-every", "1", "--eval-every", "2", "--group-size", "2", "--max-new-tokens", "4",
         "--eval-prompts", "1", "--eval-group", "2"]  # fmt: skip
WRAPPER = """
import runpy, sys
sys.path.insert(0, {root!r})
from support import coco, ranks
coco.ARCHIVES = tuple(a._replace(url=u, size=s, md5=m) for a, (u, s, m) in zip(coco.ARCHIVES, {archives!r}))
if {memory!r}:
    import torch, rollout
    judge, calls = rollout.judge, []
    def greedy(policy, group, config):
        calls.append(1)
        if ranks.rank() == 1 and len(calls) > {memory!r}:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return judge(policy, group, config)
    rollout.judge = greedy
runpy.run_path({root!r} + "/train.py", run_name="__main__")
"""


def coco_archives() -> dict[str, bytes]:
    """The first images of COCO's sample with their annotations, packed as COCO packs them."""
    source = SHARED / "coco_mini"
    content = json.loads((source / "instances.json").read_text())
    content["images"] = content["images"][:IMAGES]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] in kept]
    files = {f"val2017/{i['file_name']}": (source / "images" / i["file_name"]).read_bytes() for i in content["images"]}
    members = {"annotations/instances_val2017.json": json.dumps(content).encode()}, files
    return {f"/{name}": test_coco.zipped(part) for name, part in zip(test_coco.NAMES, members)}


def serve(server: ThreadingHTTPServer) -> str:
    """Starts a server; returns its address."""
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def main() -> int:
    """Serves, starts the command, looks at what is left."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--memory", action="store_true", help="rank 1 runs out of memory in step 2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = shrink("qwen2_5_vl_7b", folder / "model")
        test_hub.MODELS[MODEL] = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
        test_coco.CONTENT = coco_archives()
        hub, coco = ThreadingHTTPServer(("127.0.0.1", 0), test_hub.Hub), test_coco.Server(("127.0.0.1", 0), test_coco.Handler)
        addresses = serve(hub), serve(coco)
        archives = [(f"{addresses[1]}{p}", len(b), hashlib.md5(b).hexdigest()) for p, b in test_coco.CONTENT.items()]
        wrapper = WRAPPER.format(root=str(ROOT), archives=archives, memory=5 * args.memory)
        (folder / "train.py").write_text(wrapper)
        env = os.environ | {"HF_ENDPOINT": addresses[0], "HF_HOME": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
        command = ["--nproc-per-node", "2", "train.py", "--backbone", "qwen2.5-vl-7b"]
        print("$ torchrun", *command, *SMALL, "--cache coco")
        begun = time.monotonic()
        job = subprocess.run([sys.executable, "-m", "torch.distributed.run", *command, *SMALL, "--cache", "coco"],
                             cwd=folder, env=env, capture_output=True, text=True)  # fmt: skip
        said = [line for line in job.stderr.splitlines() if "train.py:" in line or "exitcode" in line]
        print(job.stdout, *said, sep="\n")
        print(f"ended with {job.returncode} after {time.monotonic() - begun:.0f} s")
        run = folder / "runs" / "qwen2.5-vl-7b-answer-ced-0"
        print("in its folder:", *sorted(path.name for path in run.iterdir()))
        rows = [json.loads(line) for line in io.StringIO((run / "log.jsonl").read_text())]
        print("steps:", len(rows), "held out after:", [row["step"] + 1 for row in rows if "held_out" in row])
        print("prompts a step:", json.loads((run / "config.json").read_text())["prompts_per_step"])
        print("archives asked for:", coco.asked)
        files = [path.rpartition("/")[2] for path in hub.asked if path.startswith("GET") and "/resolve/" in path]
        print("files of the model fetched:", {file: files.count(file) for file in sorted(set(files))})
        if job.returncode and not args.memory:
            print(job.stderr[-3000:])
        return 0


if __name__ == "__main__":
    sys.exit(main())
