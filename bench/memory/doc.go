// Command memory measures the memory of Tarn's processes. `memory controller` measures the
// controller with thousands of volumes, on a cluster that needs only an API server. `memory node`
// measures the node agent with a hundred stages, on a cluster with a node on this machine. It uses
// only the API, /metrics, /proc and cgroups.
package main
