// Package certs keeps the serving certificate of the webhooks, and the caBundle
// by which the API server knows it.
package certs
