// Command memory measures what Tarn's processes hold: `memory controller` the
// controller with thousands of volumes, on a cluster of which nothing but the API
// server need run; `memory node` the node agent with a hundred stages, on a cluster
// with a node on this machine. It knows the API, /metrics, /proc and cgroups alone.
package main
