"""Error messages as a user of a YAML file reads them, from the place in the file to the advice at
the end."""

from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.experiment.load import load_experiment
from tests.orchestrator.experiment.samples import HERE

START = f"name: line\ntask: {HERE}:Line\nepochs: 4\n"
SWEEP = "sweep:\n  metric: val/loss\n  trials: 4\n"


def printed(folder: Path, text: str, *overrides: str) -> str:
    """Return the message that a file with this text is refused with; `epochs: 4` stands in its line
    3."""
    file = folder / "e.yaml"
    file.write_text(f"{START}{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(file, overrides)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Unknown keys.
        ("batchsize: 8", "e.yaml:4: batchsize: unknown key (did you mean 'batch_size'?)"),
        ("worker_dir: 8", "e.yaml:4: worker_dir: unknown key (`hookyard schema` lists the keys)"),
        (
            "hooks: {checkpoint: {save_any: 1}}",  # not save_last
            "e.yaml:4: hooks.checkpoint.save_any: unknown key (known to Checkpoint: background, begin, best, every,"
            " keep, mode, out_dir, publish, save_last, weights)",
        ),
        ("betas: 0.9", "e.yaml:4: betas: unknown key (did you mean 'optimizer.betas'?)"),
        (
            "num_workers: 2",
            "e.yaml:4: num_workers: unknown key (did you mean 'loader.num_workers'?)",
        ),
        (
            "loader:\n  workers: 2",
            "e.yaml:5: loader.workers: unknown key (did you mean 'num_workers'?)",
        ),
        (
            "scheduler:\n  type: StepLR\n  step_size: 1\n  gama: 2",
            "e.yaml:7: scheduler.gama: unknown key (did you mean 'gamma'?)",
        ),
        (
            "scheduler: {type: StepLR, step_size: 1, last_epoch: 5}",
            "e.yaml:4: scheduler.last_epoch: unknown key (known to StepLR: gamma, step_size, type)",
        ),
        (
            "optimizer: {type: Adam, momentum: 0.9}",
            "e.yaml:4: optimizer.momentum: unknown key (known to Adam: amsgrad, betas, capturable,"
            " decoupled_weight_decay, differentiable, eps, foreach, fused, groups, lr, maximize, type, weight_decay)",
        ),
        (
            "optimizer: {type: Adam,lr:0.1}",
            "e.yaml:4: optimizer.lr:0.1: unknown key (write a space after `:`)",
        ),
        (
            f"{SWEEP}  space: {{lr: {{uniform: [0, 1]}}}}",
            "e.yaml:7: sweep.space.lr: unknown key (did you mean 'optimizer.lr'?)",
        ),
        (
            f"{SWEEP}  scheduler: {{type: asha, grace: 1}}\n  space: {{seed: {{choice: [0, 1]}}}}",
            "e.yaml:7: sweep.scheduler.grace: unknown key (did you mean 'grace_period'?)",
        ),
        (
            "early_stopping: {}",
            "e.yaml:4: early_stopping: unknown key (did you mean 'hooks.early_stopping'?)",
        ),
        (
            "hooks: {early_stopping: {metric: val/loss}}",
            "e.yaml:4: hooks.early_stopping.metric: unknown key (write monitor: val/accuracy)",
        ),
        (
            "optimizer: {type: SGD, learning_rate: 1}",
            "e.yaml:4: optimizer.learning_rate: unknown key (did you mean 'lr'?)",
        ),
        (
            "optimizer: {type: SGD, rl: 1}",
            "e.yaml:4: optimizer.rl: unknown key (did you mean 'lr'?)",
        ),
        ("learning_rate: 0.1", "e.yaml:4: learning_rate: unknown key (write optimizer: {lr: 0.1})"),
        ("zzzz: 1", "e.yaml:4: zzzz: unknown key (`hookyard schema` lists the keys)"),
        # Wrong values.
        ("batch_size: 1e3", "e.yaml:4: batch_size: must be an integer, got 1000.0"),
        ("epoch_steps: true", "e.yaml:4: epoch_steps: must be an integer, got true"),
        ("notes: 12", "e.yaml:4: notes: must be a string, got 12 (write it in quotes)"),
        ("deterministic: yes", "e.yaml:4: deterministic: must be true or false, got 'yes'"),
        ("accumulate: 0", "e.yaml:4: accumulate: must be at least 1 or 'auto', got 0"),
        ("scheduler: []", "e.yaml:4: scheduler: must not be empty"),
        (
            "hang: {after: 5 minutes}",
            "e.yaml:4: hang.after: must be a positive duration, in seconds or as a string such as 90s, 5m or 2h30m,"
            " got '5 minutes'",
        ),
        (
            "workers: {memory: 8 gigs}",
            "e.yaml:4: workers.memory: must be bytes, or a size such as 8 GiB or 500 MB, got '8 gigs'",
        ),
        (
            "hooks: {console: {every: 0}}",
            "e.yaml:4: hooks.console.every: must be at least 1 iteration, got 0 iterations",
        ),
        (
            "environment: [A=1]",
            "e.yaml:4: environment.0: must contain only letters, digits and `_`, and not begin with a digit, got 'A=1'",
        ),
        (
            f"seed: {2**64}",
            "e.yaml:4: seed: integers must fit in 64 bits, got '18446744073709551616'",
        ),
        (
            f"seed: {'9' * 5000}",
            f"e.yaml:4: seed: integers must fit in 64 bits, got '{'9' * 77}...'",
        ),
        ("workers: {count: 0}", "e.yaml:4: workers.count: must be at least 1, got 0"),
        (
            "workers: {count: two}",
            "e.yaml:4: workers.count: must be an integer or a list of integers, got 'two'",
        ),
        (
            "hooks: {checkpoint: {best: val/loss, mode: mim}}",
            "e.yaml:4: hooks.checkpoint.mode: must be 'max' or 'min', got 'mim' (did you mean 'min'?)",
        ),
        (
            "workers:\n  count: [2]",
            "e.yaml:5: workers.count: must have at least 2 entries, got [2]",
        ),
        (
            f"{SWEEP}  share_training: true\n  space: {{seed: {{choice: [0, 1]}}}}",
            "e.yaml:7: sweep.share_training: must be 'auto' or false, got true",
        ),
        # A value where a mapping belongs.
        (
            "optimizer: Adam",
            "e.yaml:4: optimizer: must be a mapping, got 'Adam' (write {type: Adam})",
        ),
        (
            "scheduler: [StepLR]",
            "e.yaml:4: scheduler.0: must be a mapping, got 'StepLR' (write {type: StepLR})",
        ),
        (
            "compile: max-autotune",
            "e.yaml:4: compile: must be a mapping, got 'max-autotune' (write {mode: max-autotune})",
        ),
        ("hang: 300", "e.yaml:4: hang: must be a mapping, got 300 (known: action, after)"),
        (
            "hooks: [name: precise_bn]",
            "e.yaml:4: hooks: must be a mapping, got [{'name': 'precise_bn'}]"
            " (write each hook by its name, such as ema: {decay: 0.999})",
        ),
        (
            f"{SWEEP}  space: {{seed: [0, 1]}}",
            "e.yaml:7: sweep.space.seed: must be a mapping, got [0, 1] (known: choice, fan_out, grid, lograndint,"
            " loguniform, normal, qloguniform, quniform, randint, uniform)",
        ),
        (f"{SWEEP}  space: [seed]", "e.yaml:7: sweep.space: must be a mapping, got ['seed']"),
        # Syntax.
        (
            "hooks:\n\tema: {}",
            "e.yaml:5: invalid YAML: found character '\\t' that cannot start any token while scanning for the next"
            " token (use spaces instead of tabs)",
        ),
        (
            "---\nname: b",
            "e.yaml:4: invalid YAML: expected a single document in the stream, but found another document",
        ),
        (
            "notes: lr: too high",
            "e.yaml:4: invalid YAML: mapping values are not allowed here (check the indentation of this line, or put"
            " text that contains `: ` in quotes)",
        ),
        ("compile: maybe", "e.yaml:4: compile: must be true, false or a mapping with `mode`"),
        (
            f"{SWEEP}  space: {{batch_size: {{loguniform: [7.5, 64.5]}}}}",
            "e.yaml:7: sweep.space.batch_size: must be an integer, but loguniform samples any number (write"
            " lograndint: [8, 65])",
        ),
        # One mistake is one problem.
        (
            f"{SWEEP}  spaces: {{seed: {{choice: [0]}}}}",
            "e.yaml:7: sweep.spaces: unknown key (did you mean 'space'?)",
        ),
        # Several keys together; each is reported at its own line.
        (
            "steps: 3",
            "e.yaml:4: steps: cannot be combined with epochs; remove one of them (or set it to null to override a"
            " base)",
        ),
        (
            "workers:\n  cpus: 1\n  count: [8, 2]",
            "e.yaml:6: workers.count: must be a number, or [min, max] with min < max, got [8, 2]",
        ),
        (
            "workers:\n  count: 2\n  gpu: 0.5",
            "e.yaml:6: workers.gpu: must be true or false when count is greater than 1, got 0.5 with count: 2; NCCL"
            " needs a whole GPU for each rank",
        ),
        (
            "workers:\n  cpus: 1\n  accelerator: H100",
            "e.yaml:6: workers.accelerator: has no effect without `gpu: true`",
        ),
        (
            "workers:\n  resources: {GPU: 1}",
            "e.yaml:5: workers.resources: cannot hold GPU; use the keys cpus, gpu and memory",
        ),
        (
            "init:\n  from: x.pt\n  rename: {'a*': b}",
            "e.yaml:6: init.rename: needs as many * on both sides, got 1 in 'a*' and 0 in 'b'",
        ),
        (
            f"{SWEEP}  space: {{seed: {{choice: [0]}}}}\n  scheduler:\n    {{type: asha, max_t: 2, grace_period: 4}}",
            "e.yaml:9: sweep.scheduler.max_t: must be at least grace_period: 4, got 2",
        ),
        # Schedulers that a file cannot describe, and a length that torch would refuse in the middle
        # of the run.
        (
            "scheduler: {type: ChainedScheduler}",
            "e.yaml:4: scheduler.type: ChainedScheduler combines schedulers; write a list of them",
        ),
        (
            "scheduler: {type: SequentialLR}",
            "e.yaml:4: scheduler.type: SequentialLR combines schedulers; write a list of them",
        ),
        (
            "scheduler: {type: LambdaLR}",
            "e.yaml:4: scheduler.type: LambdaLR takes a function, which YAML cannot hold; define scheduler() in the"
            " task",
        ),
        (
            "optimizer: {type: SGD}\nscheduler: {type: OneCycleLR, total_steps: 3}",
            "e.yaml:5: scheduler.total_steps: must be at least 4, the scheduler's steps in this run, got 3",
        ),
        (
            "optimizer: {type: LBFGS, groups: [{match: '*', lr_scale: 2}]}",
            "e.yaml:4: optimizer.groups: cannot be used with LBFGS, which treats all parameters alike",
        ),
        (
            f"{SWEEP}  space: {{optimizer.lr: {{choice: [1]}}}}\n  budget: {{type: [x]}}",
            "e.yaml:8: sweep.budget.type: unknown key (known: samples, time, trials)",
        ),
        # Sweeps: one problem for both ends of a range, and what a normal distribution may draw.
        (
            f"{SWEEP}  space: {{batch_size: {{uniform: [1, 4]}}}}",
            "e.yaml:7: sweep.space.batch_size: must be an integer, but uniform samples any number (write randint: [1,"
            " 5])",
        ),
        (
            f"{SWEEP}  space: {{optimizer.lr: {{normal: [0.1, 0.1]}}}}",
            "e.yaml:7: sweep.space.optimizer.lr: SGD raised: Invalid learning rate: -1.7976931348623157e+308"
            " (write normal: [mean, sd, low, high])",
        ),
    ],
)
def test_message_says_what_is_wrong_where_and_what_to_do(
    tmp_path: Path, text: str, message: str
) -> None:
    assert printed(tmp_path, text) == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "batch_size=",
            "override 'batch_size=': batch_size: has no value; write batch_size=null to remove it",
        ),
        (
            "base=x.yaml",
            "override 'base=x.yaml': base: cannot be overridden; set it in the experiment file",
        ),
        ("notes=#3", "override 'notes=#3': notes: has no value; write notes=null to remove it"),
        ("batch_size='3'", "override 'batch_size='3'': batch_size: must be an integer, got '3'"),
        ("lr=0.1", "override 'lr=0.1': lr: unknown key (did you mean 'optimizer.lr'?)"),
        (
            "optimizer=Adam",
            "override 'optimizer=Adam': optimizer: must be a mapping, got 'Adam' (write {type: Adam})",
        ),
    ],
)
def test_message_about_an_override_quotes_it(tmp_path: Path, override: str, message: str) -> None:
    assert printed(tmp_path, "", override) == message
