"""The notifier: delivers notifications by webhooks, mail and the operator's command. Decides nothing about retries."""
