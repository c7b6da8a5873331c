"""What MMEngine, ClassyVision, VISSL and iMIX call the options of their hooks, and what to write here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

_EVERY = "write every: 2 epochs, or every: 100 steps"
_FOLDER = "files lie in the run's folder, under the hook's name; --storage says where that is"
_REMOTE = "credentials and options are those of the storage's URL"
_SWITCH = "a hook that is named is on; null switches one off"
_RANKS = "the loop knows the ranks"
_LOGGER = {
    "log_config_period, log_freq, log_period, log_frequency": "write interval: 50, in iterations",
    "window_size, btime_freq, rolling_btime_freq": "write window: 20",
    "ignore_last": "what is left as an epoch ends is always written",
    "interval_exp_name": "the name is in run.json and begins the log",
    "log_metric_by_epoch": "every line has the epoch, iteration, step and samples",
    "out_dir, out_suffix, keep_local": _FOLDER,
    "checkpoint_folder, save_dir, json_file, scalar_save_file, log_dir, experiment_log_dir": _FOLDER,
    "file_client_args, backend_args": _REMOTE,
    "loggers": "name each logger as a hook of its own",
    "max_iter, max_epoch, max_iters, max_epochs": "write epochs or steps of the experiment",
}

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "": {
        "fp16, amp_args, amp_params, init_scale, growth_interval, grad_scaler_config, loss_scale": "write precision: fp16; its scale "
        "is torch's GradScaler's, which begins at 65536 (init_scale) and doubles after 2000 steps without overflow (growth_interval)",
        "optim_wrapper": "write optimizer, accumulate, precision, and the hook gradient_clip",
        "optimizer_config, grad_clip, clip_grad": "write the hook gradient_clip: {max_norm: 1.0}",
        "gradient_accumulation_steps, accumulative_counts": "write accumulate: 4",
        "max_epochs, num_epochs, max_epoch": "write epochs: 20",
        "max_iters, max_iter": "write steps: 1000, which are optimizer steps",
        "by_iter, by_epoch": "write steps instead of epochs",
        "train_cfg": "write epochs or steps, and validate_every",
        "val_interval, eval_iter_period, test_every_num_epoch": "write validate_every: 2 epochs, or 100 steps",
        "is_lr_accumulation": "write the hook param_scheduler: {every: 1 step}",
        "default_hooks, custom_hooks": "write hooks, each by its name",
        "log_config": "write the hook console: {interval: 50}",
        "checkpoint_config": "write the hook checkpoint: {every: 100 steps}",
    },
    "activation_stats": {
        "log_frequency, monitor_activation_statistics, log_activation_statistics": "write every: 100 steps",
        "ignored_modules": "write ignored: [ReLU]",
        "observer": "what is measured goes to activations/ and to the trackers that the run has",
    },
    "anomaly_detection": {"mode": _SWITCH},
    "byol": {"base_momentum": "write momentum: 0.996"},
    "checkpoint": {
        "interval, by_epoch, checkpoint_period, iter_period, epoch_period, checkpoint_frequency, checkpoint_iter_frequency": _EVERY,
        "max_keep_ckpts, max_num_checkpoints": "write keep: 3, or keep: null for all of them",
        "save_best": "write best: val/accuracy",
        "greater_keys, less_keys": "write mode, for each metric of best",
        "save_begin": "write begin: 5",
        "published_keys": "write publish: [model]",
        "save_optimizer, save_param_scheduler": "optimizer and scheduler are always in it, so that it can be resumed; publish: [model] leaves them out",
        "filename_tmpl, prefix": "names are epoch-0003 and step-00000100",
        "checkpoint_folder, work_dir": "write out_dir",
        "file_client_args, backend_args": _REMOTE,
        "input_args": "experiment.yaml lies beside the checkpoints",
        "phase_types": "a checkpoint is made after training and before validation, and where it is best marked after it",
        "checkpointer, world_size": "the loop saves, and knows the ranks",
        "max_iter, max_epoch": "write steps or epochs of the experiment",
        "eval_iter_period, is_run_eval, eval_function": "write validate_every of the experiment; the task's metrics are what is measured",
        "eval_json_file": "metrics are in the run's metrics.jsonl",
    },
    "console": {
        **_LOGGER,
        "custom_cfg, mean_pattern": "write statistics: {slowest: {column: step_s, method: max, window: epoch}}",
        "by_epoch, num_digits, log_with_hierarchy": "lines have one form; every number is in the run's tables",
        "warmup_iter": "the remaining time is a median, without the first iterations",
    },
    "device_stats": {"log_gpu_stats": _SWITCH},
    "distillation": {"eager_teacher_init": "the teacher is loaded as the run begins"},
    "ema": {
        "ema_type": "write average: exponential, annealing or stochastic",
        "begin_iter": "write begin: 1000 steps",
        "begin_epoch": "write begin: 1 epoch for begin_epoch: 2, one epoch less",
        "warmup": "write begin, in epochs or steps, for a fraction of the training",
        "update_buffers, consider_bn_buffers": "write buffers: ema, or copy",
        "enable_ema_meters": "write evaluate: both",
        "update_iter": "write interval: 1",
        "ema_decay_ratio": "write decay: 0.999",
        "ema_device": "write device: cpu; without it averages lie beside the weights",
        "strict_load": "a checkpoint must fit the model",
        "config, use_ema, save_ema_model": f"{_SWITCH}; its options stand right below it",
    },
    "empty_cache": {"clear_cuda_cache": "write after_iter: true", "clear_freq": "write interval: 100"},
    "export": {
        "use_trace": "write format: trace or format: script",
        "trace_strict": "a trace is not strict, so that outputs may be mappings and lists",
        "device": "TorchScript and pt2 are written on the CPU",
        "torchscript_folder": _FOLDER,
    },
    "freeze_parameters": {"temp_frozen_params_iter_map": "write patterns: [0.weight] and until: 300 steps"},
    "gradient_clip": {
        "grad_clip, max_grad_l2_norm": "write max_norm: 1.0",
        "use_scale": "gradients are unscaled before they are clipped",
        "clip_norm_mode": "all gradients are clipped by one norm",
        "use_grad_clip": _SWITCH,
        "grad_scaler_config": "write precision: fp16 of the experiment; its scale is torch's",
    },
    "json_lines": {**_LOGGER, "img_save_dir, config_save_file": "images go to no file; the config is experiment.yaml"},
    "layer_memory": {"track_by_layer_memory": "write every: 100 steps"},
    "memory_snapshot": {"dump_memory_on_exception": "write failures: any"},
    "memory_stats": {"log_iteration_num": "write every: 10, in iterations", "print_memory_summary": _SWITCH},
    "mlflow": {
        **_LOGGER,
        "exp_name": "write experiment",
        "run_name": "it is the run's name",
        "params, tracked_config_keys": "the whole config is logged",
        "artifact_suffix, artifact_location": "files stay in the run's folder, of which MLflow has the path",
    },
    "moco": {"shuffle_batch": "images are shuffled over ranks where the model mixes samples, as BatchNorm does"},
    "model_complexity": {"compute_complexity": _SWITCH, "input_shape, input_key": "a real batch is counted"},
    "nan_guard": {"check_nan": _SWITCH, "world_size": _RANKS},
    "output_csv": {"folder": _FOLDER, "delimiter": "files are separated by commas, as pandas reads them"},
    "output_mask": {"model_output_mask": _SWITCH},
    "param_scheduler": {
        "is_lr_accumulation": "write every: 1 step, which is an optimizer step",
        "scheduler, optimizer": "write scheduler and optimizer of the experiment",
    },
    "perf_stats": {
        "log_freq, perf_stat_frequency": "every iteration has a row; hookyard stats RUN shows them",
        "monitor_perf_stats": _SWITCH,
        "use_cuda_events": "on a GPU they always are",
        "rolling_btime_freq": "write the hook console: {window: 20}",
        "warmup_iter": "the remaining time is the hook console's",
    },
    "precise_batch_norm": {
        "num_iter": "write num_samples: their number times the batch and the number of ranks",
        "period": "statistics are taken before each validation",
        "model, data_loader": "they are the task's",
    },
    "profiler": {
        "start_iteration": "write skip_first: 10",
        "warmup_iterations": "write warmup: 1",
        "num_iterations, profile_times": "write active: 3",
        "schedule, by_epoch, enable_predicate": "write skip_first, wait, warmup, active and repeat",
        "stop_training_after_profiling, exit_after_profiling": "write stop_after: true",
        "activity_with_cpu, activity_with_cuda, profile_cpu, profile_gpu, use_cuda": "write activities: [cpu, cuda]",
        "on_trace_ready, json_trace_path, output_folder, output_dir": "traces lie in the run's folder, under traces/",
        "use_profiler, runtime_profiling, legacy_profiler": f"{_SWITCH}; it is torch.profiler",
        "memory_profiling, track_by_layer_memory": "write the hook layer_memory",
        "profiling_config": "options stand right below the hook",
    },
    "swav_momentum": {
        "crops_for_assign": "write assigned_views: [0, 1]",
        "momentum_eval_mode_iter_start": "the momentum encoder is in evaluation mode from the start",
    },
    "tensorboard": {
        **_LOGGER,
        "tb_writer, summary_writer": "it has a writer of its own, under tensorboard/",
        "log_params_every_n_iterations, log_params_every_n_iters": "write histograms: 310 steps",
        "log_params, log_params_gradients": "histograms are of both",
        "log_activation_statistics": "write the hook activation_stats; tensorboard draws what it measures",
        "flush_every_n_min": "write flush_s: 300",
        "use_tensorboard": _SWITCH,
    },
    "wandb": {
        **_LOGGER,
        "init_kwargs": "write project, entity, group, tags and mode",
        "define_metric_cfg": "curves are over the optimizer step",
        "commit, log_code_name": "points are sent as they come; the commit and its diff are in run.json",
        "watch_kwargs": "gradients are measured by optimizer_stats, and drawn by tensorboard: {histograms: 500 steps}",
    },
}
"""Our hook (the experiment is the empty name) to its options there, in lower case, and what to write instead."""


@cache
def options_elsewhere(kind: str) -> Mapping[str, str]:
    """Each option by itself, for a hook of this kind."""
    return {name: advice for names, advice in OPTIONS.get(kind, {}).items() for name in names.split(", ")}
