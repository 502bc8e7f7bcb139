# Where and on what the job runs. What it does: parameters.tf.

variable "project" {
  description = "The project that pays."
  type        = string
}

variable "region" {
  description = "Where the workers are; that of the bucket, else every byte costs."
  type        = string
}

variable "job_name" {
  description = "Name of the job: small letters, digits and hyphens."
  type        = string
  default     = "beam-prep"
}

variable "template" {
  description = "The template that cloudbuild.yaml wrote. Example: gs://bucket/templates/beam_prep.json"
  type        = string
}

variable "temp_location" {
  description = "Folder for Dataflow's own files. Example: gs://bucket/temp"
  type        = string
}

variable "staging_location" {
  description = "Folder for the job's graph. Example: gs://bucket/staging"
  type        = string
}

variable "machine_type" {
  description = "Of the workers. One process a core, about 400 MB each."
  type        = string
  default     = "n2-standard-4"
}

variable "launcher_machine_type" {
  description = "Of the machine that launches: it loads the tokenizer and lists the inputs."
  type        = string
  default     = "n2-standard-2"
}

variable "max_workers" {
  description = "The most machines that autoscaling takes."
  type        = number
  default     = 20
}

variable "service_account_email" {
  description = "What the workers are; null: the default account of Compute Engine."
  type        = string
  default     = null
}

variable "subnetwork" {
  description = "Of the workers. Example: regions/europe-west4/subnetworks/default"
  type        = string
  default     = null
}

variable "ip_configuration" {
  description = "WORKER_IP_PRIVATE where the subnetwork has Private Google Access: workers need nothing else."
  type        = string
  default     = "WORKER_IP_PUBLIC"
}

variable "labels" {
  description = "Labels of the job."
  type        = map(string)
  default     = {}
}
