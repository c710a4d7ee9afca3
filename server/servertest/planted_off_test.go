//go:build !planted

package servertest

const plantedBuild = false
