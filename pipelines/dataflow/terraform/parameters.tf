# Made from beam_prep/options.py by `make template`.

variable "inputs" {
  description = "JSONL or Parquet files (.gz, .bz2 and .zst are read too), as paths or globs separated by commas or white space, or @LIST, a file that names one a line. Without it, the config names the files: input.groups. Example: gs://bucket/chats/*.jsonl.gz, gs://bucket/more.jsonl"
  type        = string
  default     = null

  validation {
    condition     = var.inputs == null || can(regex("^\\s*@?gs://[^\\s,]+([\\s,]+@?gs://[^\\s,]+)*\\s*$", var.inputs))
    error_message = "Wanted a value like gs://bucket/chats/*.jsonl.gz, gs://bucket/more.jsonl."
  }
}

variable "output_dir" {
  description = "The directory to make. Example: gs://bucket/prepared/chats"
  type        = string

  validation {
    condition     = can(regex("^gs://[^/\\s]+/\\S+$", var.output_dir))
    error_message = "Wanted a value like gs://bucket/prepared/chats."
  }
}

variable "config" {
  description = "The config, a JSON file; give either this or config_json. Example: gs://bucket/configs/sft_chat.json"
  type        = string
  default     = null

  validation {
    condition     = var.config == null || can(regex("^gs://[^/\\s]+/\\S+\\.json$", var.config))
    error_message = "Wanted a value like gs://bucket/configs/sft_chat.json."
  }
}

variable "config_json" {
  description = "The config as JSON; give either this or config. Example: {\"input\": {\"sections\": [{\"field\": \"text\", \"action\": \"train\"}]}}"
  type        = string
  default     = null

  validation {
    condition     = var.config_json == null || can(regex("^\\s*\\{[\\s\\S]*\\}\\s*$", var.config_json))
    error_message = "Wanted a value like {\"input\": {\"sections\": [{\"field\": \"text\", \"action\": \"train\"}]}}."
  }
}

variable "tokenizer_path" {
  description = "A tokenizer's folder; on the command line also its Hugging Face name. Example: gs://bucket/tokenizers/qwen3"
  type        = string

  validation {
    condition     = can(regex("^(gs://[^/\\s]+|/template/tokenizers)/\\S+$", var.tokenizer_path))
    error_message = "Wanted a value like gs://bucket/tokenizers/qwen3."
  }
}

variable "overwrite" {
  description = "Replace the output of another job. Example: true"
  type        = string
  default     = null

  validation {
    condition     = var.overwrite == null || can(regex("^(true|false)$", var.overwrite))
    error_message = "Wanted a value like true."
  }
}

variable "keep_versions" {
  description = "Make a version, DIR/<time>, to which DIR/latest points at the end, and keep this many. Example: 3"
  type        = string
  default     = null

  validation {
    condition     = var.keep_versions == null || can(regex("^\\d+$", var.keep_versions))
    error_message = "Wanted a value like 3."
  }
}

variable "version_name" {
  description = "With --keep_versions: the version's name (default: the launch time in UTC); versions are in order of their names. Example: 20261122"
  type        = string
  default     = null

  validation {
    condition     = var.version_name == null || can(regex("^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", var.version_name))
    error_message = "Wanted a value like 20261122."
  }
}

variable "max_reject_rate" {
  description = "Fail when a larger share of the records is rejected. Example: 0.05"
  type        = string
  default     = null

  validation {
    condition     = var.max_reject_rate == null || can(regex("^\\d+(\\.\\d+)?$", var.max_reject_rate))
    error_message = "Wanted a value like 0.05."
  }
}

variable "max_no_loss_rate" {
  description = "Fail when a larger share of the records is dropped as empty or without loss. Example: 0.2"
  type        = string
  default     = null

  validation {
    condition     = var.max_no_loss_rate == null || can(regex("^\\d+(\\.\\d+)?$", var.max_no_loss_rate))
    error_message = "Wanted a value like 0.2."
  }
}

variable "max_reject_chars" {
  description = "Most characters kept of a rejected record; 0: no text. Example: 0"
  type        = string
  default     = null

  validation {
    condition     = var.max_reject_chars == null || can(regex("^\\d+$", var.max_reject_chars))
    error_message = "Wanted a value like 0."
  }
}

variable "max_line_bytes" {
  description = "Reject a line that is longer than this number of bytes. Example: 1048576"
  type        = string
  default     = null

  validation {
    condition     = var.max_line_bytes == null || can(regex("^\\d+$", var.max_line_bytes))
    error_message = "Wanted a value like 1048576."
  }
}

variable "cache_dir" {
  description = "Keep tokenised blocks here for later runs; by default they are removed when this run succeeds. Example: gs://bucket/token_cache"
  type        = string
  default     = null

  validation {
    condition     = var.cache_dir == null || can(regex("^gs://[^/\\s]+/\\S+$", var.cache_dir))
    error_message = "Wanted a value like gs://bucket/token_cache."
  }
}

variable "staging" {
  description = "The folder of unfinished files; by default .beam_prep next to the output. Example: gs://bucket/unfinished"
  type        = string
  default     = null

  validation {
    condition     = var.staging == null || can(regex("^gs://[^/\\s]+/\\S+$", var.staging))
    error_message = "Wanted a value like gs://bucket/unfinished."
  }
}

variable "lease" {
  description = "How long a killed launch blocks its output where its lock cannot be seen: from another machine, in a store. Example: 120"
  type        = string
  default     = null

  validation {
    condition     = var.lease == null || can(regex("^\\d+(\\.\\d+)?$", var.lease))
    error_message = "Wanted a value like 120."
  }
}

variable "block_bytes" {
  description = "Bytes of input in a block, a multiple of 65536; does not change the output. Example: 4194304"
  type        = string
  default     = null

  validation {
    condition     = var.block_bytes == null || can(regex("^\\d+$", var.block_bytes))
    error_message = "Wanted a value like 4194304."
  }
}

variable "tokenizer_backend" {
  description = "The library that encodes: transformers = the reference; gigatoken = gigatoken (BPE), or an error; auto = above 2 MB gigatoken, if it gives the same ids as transformers. Example: transformers"
  type        = string
  default     = null

  validation {
    condition     = var.tokenizer_backend == null || can(regex("^(auto|transformers|gigatoken)$", var.tokenizer_backend))
    error_message = "Wanted a value like transformers."
  }
}

variable "check" {
  description = "What is compared with transformers: sample = some records of every block (if one differs, the reference makes the block); full = everything, from the bytes to the masks (a difference fails the run). Example: full"
  type        = string
  default     = null

  validation {
    condition     = var.check == null || can(regex("^(sample|full)$", var.check))
    error_message = "Wanted a value like full."
  }
}

locals {
  # Those that were not given are left to the template.
  parameters = {
    for name, value in {
      inputs            = var.inputs
      output_dir        = var.output_dir
      config            = var.config
      config_json       = var.config_json
      tokenizer_path    = var.tokenizer_path
      overwrite         = var.overwrite
      keep_versions     = var.keep_versions
      version_name      = var.version_name
      max_reject_rate   = var.max_reject_rate
      max_no_loss_rate  = var.max_no_loss_rate
      max_reject_chars  = var.max_reject_chars
      max_line_bytes    = var.max_line_bytes
      cache_dir         = var.cache_dir
      staging           = var.staging
      lease             = var.lease
      block_bytes       = var.block_bytes
      tokenizer_backend = var.tokenizer_backend
      check             = var.check
    } : name => value if value != null
  }
}
