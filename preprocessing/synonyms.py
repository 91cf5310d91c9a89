"""What settings are called in other tools: searched before an unknown key is compared by its letters."""

from typing import NamedTuple


class Meaning(NamedTuple):
    names: str
    """Names in other tools, separated by blanks."""
    key: str
    """The setting that they mean here, dotted from the root of a recipe; with `=VALUE` where the name says the value,
    too."""
    note: str = ""
    """What differs here. Settings in it are in backticks."""

    @property
    def root(self) -> str:
        """The section at the root of a recipe that has the setting."""
        first = self.key.partition(".")[0]
        return "train" if first == "task" else first


TABLE = (
    # The optimiser and the learning rate
    Meaning("lr learning_rate max_lr peak_lr base_lr", "train.optimizer.learning_rate"),
    Meaning("weight_decay wd", "train.optimizer.weight_decay"),
    Meaning("optim optimizer_type optimizer_name", "train.optimizer.name"),
    Meaning("adam_betas adam_beta1 adam_beta2 beta1 beta2", "train.optimizer.betas", "both in one list"),
    Meaning("adam_epsilon adam_eps epsilon", "train.optimizer.eps"),
    Meaning(
        "max_grad_norm clip_grad clip_grad_norm grad_clip gradient_clip_val gradient_clipping clip_norm",
        "train.optimizer.gradient_clip",
    ),
    Meaning("llrd layerwise_lr_decay layer_wise_lr_decay", "train.optimizer.layer_decay"),
    Meaning(
        "warmup warmup_steps num_warmup_steps lr_warmup_steps warmup_updates warmup_iters",
        "train.schedule.warmup_steps",
    ),
    Meaning(
        "warmup_ratio warmup_fraction warmup_proportion lr_warmup_fraction",
        "finetune.warmup_share",
        "pretraining counts steps: `train.schedule.warmup_steps`",
    ),
    Meaning("lr_scheduler_type lr_scheduler scheduler lr_schedule lr_decay_style", "train.schedule.decay"),
    # How long
    Meaning(
        "max_steps num_steps train_steps total_steps max_train_steps num_train_steps training_steps train_iters "
        "max_iters iterations num_iterations max_updates",
        "train.steps",
    ),
    Meaning(
        "epochs num_epochs num_train_epochs max_epochs train_epochs",
        "finetune.epochs",
        "pretraining counts steps: `train.steps`",
    ),
    # The batch
    Meaning(
        "batch batch_size train_batch_size global_batch_size total_batch_size",
        "train.global_batch",
        "the rows of a step on all processes; `train.micro_batch` is the most in one forward pass",
    ),
    Meaning(
        "per_device_train_batch_size per_device_batch_size per_gpu_train_batch_size micro_batch_size device_batch_size "
        "train_micro_batch_size_per_gpu eval_batch_size per_device_eval_batch_size",
        "train.micro_batch",
        "`train.global_batch` is the rows of a step on all processes",
    ),
    Meaning(
        "gradient_accumulation_steps gradient_accumulation accumulate_grad_batches grad_accum update_freq",
        "train.global_batch",
        "passes of at most `train.micro_batch` rows are added up until a step has that many",
    ),
    Meaning("max_tokens tokens_per_batch tokens_per_step batch_size_tokens total_batch_tokens", "train.batch_tokens"),
    # The length of a row
    Meaning(
        "max_length max_len max_seq_length max_seq_len max_sequence_length seq_length seq_len block_size "
        "context_length model_max_length n_ctx",
        "train.data.sequence_length",
    ),
    Meaning("doc_stride stride", "task.step"),
    Meaning("max_answer_length", "task.answer_length"),
    Meaning("max_query_length max_question_length", "task.other_length"),
    # Precision and memory
    Meaning("fp16 half float16 use_fp16", "train.precision=fp16"),
    Meaning("bf16 bfloat16 use_bf16", "train.precision=bf16"),
    Meaning("mixed_precision amp use_amp dtype torch_dtype", "train.precision"),
    Meaning("loss_scale init_loss_scale", "train.initial_loss_scale"),
    Meaning(
        "gradient_checkpointing checkpoint_activations recompute recompute_activations",
        "train.activation_checkpointing",
    ),
    Meaning("torch_compile", "train.compile"),
    # Processes and machines
    Meaning("tensor_parallel tensor_parallel_size tensor_model_parallel_size tp tp_size", "train.parallel.tensor"),
    Meaning(
        "zero_stage zero_optimization use_distributed_optimizer distributed_optimizer shard_optimizer_state",
        "train.parallel.shard_state",
        "true is ZeRO's stage 1",
    ),
    Meaning(
        "nproc_per_node num_processes world_size devices gpus num_gpus n_gpu n_gpus",
        "train.parallel.processes",
        "on one machine; with --slurm `slurm.nodes` and `slurm.gpus_per_node`",
    ),
    Meaning("num_nodes nnodes nodes", "slurm.nodes"),
    Meaning("num_threads omp_num_threads", "train.threads"),
    Meaning(
        "num_workers dataloader_num_workers num_proc preprocessing_num_workers n_jobs",
        "preprocess.workers",
        "training draws its rows itself and needs none",
    ),
    # What is predicted
    Meaning("mlm_probability mlm_prob masked_lm_prob mask_prob mask_probability", "train.data.masking.probability"),
    Meaning("whole_word_mask whole_word_masking do_whole_word_mask wwm", "train.data.masking.strategy=whole-word"),
    Meaning("dupe_factor", "train.data.copies"),
    Meaning("nsp use_nsp", "train.data.next_sentence"),
    # Text, examples and tokenizer
    Meaning(
        "train_file train_path train_data_file training_file",
        "task.train",
        "for fine-tuning; raw text is `preprocess.input.paths`",
    ),
    Meaning(
        "validation_file valid_file dev_file eval_file eval_data_file",
        "task.dev",
        "for fine-tuning; raw text is `preprocess.input.validation_paths`",
    ),
    Meaning("test_file predict_file", "task.test"),
    Meaning(
        "dataset dataset_name dataset_path data_path data_dir train_dataset",
        "train.data.corpus",
        "a folder made by `reread preprocess`; raw text is `preprocess.input.paths`",
    ),
    Meaning("text_column text_column_name text_key", "preprocess.input.text_field"),
    Meaning("num_labels label_list label_names", "task.labels"),
    Meaning("validation_split_percentage val_split valid_fraction", "preprocess.validation_share"),
    Meaning("tokenizer_name tokenizer_path tokenizer_name_or_path vocab vocab_file", "preprocess.tokenizer.path"),
    Meaning("vocab_size vocabulary_size", "preprocess.tokenizer.train.size"),
    Meaning("do_lower_case lower_case uncased", "preprocess.tokenizer.lowercase"),
    # Where a run begins and what it leaves
    Meaning(
        "model_name_or_path model_name pretrained_model_name_or_path pretrained from_pretrained init_checkpoint",
        "train.init",
    ),
    Meaning("model_type architecture arch", "train.model.type"),
    Meaning(
        "resume resume_from resume_from_checkpoint",
        "train.from_run",
        "a new run begins where another ended; the same command again continues its own run",
    ),
    Meaning("output_dir save_dir run_name experiment_name", "name", "a run is in the folder runs/NAME"),
    Meaning("logging_steps log_steps log_interval log_freq log_every_n_steps", "train.log_every"),
    Meaning("save_steps save_interval save_freq save_every checkpoint_interval", "train.checkpoint.every_steps"),
    Meaning("save_total_limit max_to_keep keep_last", "train.checkpoint.keep"),
    Meaning("eval_steps eval_interval eval_every val_interval val_check_interval", "train.validate_every"),
    Meaning("eval_iters limit_val_batches", "train.validation_batches"),
    Meaning("report_to logger", "train.writers"),
    Meaning("early_stopping early_stopping_patience", "train.patience"),
    Meaning("metric_for_best_model monitor", "train.best_by"),
    Meaning("seed random_seed manual_seed data_seed", "train.seed"),
    # The model: of these names a type of model has the one that its configuration has
    Meaning("num_hidden_layers num_layers n_layers n_layer layers depth", "train.model.num_hidden_layers"),
    Meaning("hidden_size hidden_dim d_model n_embd embed_dim model_dim", "train.model.hidden_size"),
    Meaning("num_attention_heads num_heads n_heads n_head heads", "train.model.num_attention_heads"),
    Meaning("intermediate_size ffn_hidden_size ffn_dim d_ff d_inner mlp_dim", "train.model.intermediate_size"),
    Meaning("hidden_dropout_prob hidden_dropout dropout dropout_rate", "train.model.hidden_dropout_prob"),
    Meaning(
        "attention_probs_dropout_prob attention_dropout attn_dropout dropatt",
        "train.model.attention_probs_dropout_prob",
    ),
    Meaning("max_position_embeddings max_positions n_positions", "train.model.max_position_embeddings"),
)

_BY_NAME = {name: meaning for meaning in TABLE for name in meaning.names.split()}


def meaning_of(name: str) -> Meaning | None:
    """What a setting of this name in another tool means here; dashes and capitals make no difference."""
    return _BY_NAME.get(name.lower().replace("-", "_"))


def answer(meaning: Meaning) -> str:
    """The end of an error line about a key."""
    return f"`{meaning.key}` is what you mean{meaning.note and f' ({meaning.note})'}"
