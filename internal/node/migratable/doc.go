// Package migratable decides whether a VM can be live-migrated, and keeps the condition
// LiveMigratable of this node's VMIs.
//
// Judge is a function of facts. Conditions collects them when a VM has changed, and each
// few minutes, and writes the condition where it is another.
package migratable
