# One job of the template. The parameters of the form are variables in parameters.tf.

resource "google_project_service" "required" {
  provider           = google-beta
  for_each           = toset(["compute.googleapis.com", "dataflow.googleapis.com", "storage.googleapis.com"])
  project            = var.project
  service            = each.key
  disable_on_destroy = false
}

resource "google_dataflow_flex_template_job" "beam_prep" {
  provider                = google-beta
  depends_on              = [google_project_service.required]
  name                    = var.job_name
  project                 = var.project
  region                  = var.region
  container_spec_gcs_path = var.template
  parameters              = local.parameters

  machine_type          = var.machine_type
  launcher_machine_type = var.launcher_machine_type
  max_workers           = var.max_workers
  service_account_email = var.service_account_email
  subnetwork            = var.subnetwork
  ip_configuration      = var.ip_configuration
  temp_location         = var.temp_location
  staging_location      = var.staging_location
  labels                = var.labels

  # What `terraform destroy` does to a job that still runs; one that has ended is left alone.
  on_delete                    = "cancel"
  skip_wait_on_job_termination = true
}
