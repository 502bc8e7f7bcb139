output "job_id" {
  description = "The id that Dataflow gave."
  value       = google_dataflow_flex_template_job.beam_prep.job_id
}

output "state" {
  description = "The state of the job when it was last looked at."
  value       = google_dataflow_flex_template_job.beam_prep.state
}

output "job_url" {
  description = "The page of the job in the console."
  value = join("", [
    "https://console.cloud.google.com/dataflow/jobs/${var.region}/",
    "${google_dataflow_flex_template_job.beam_prep.job_id}?project=${var.project}",
  ])
}
