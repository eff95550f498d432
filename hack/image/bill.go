package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// writeBill writes the modules linked into a binary, as the binary itself lists them, in
// CycloneDX's JSON. The binaries of all architectures have the same modules.
func writeBill(path, version, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("reading the binary's build information: %w", err)
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the bill of materials: %w", err)
	}
	defer file.Close()
	encoder := cyclonedx.NewBOMEncoder(file, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	if err := encoder.Encode(bill(version, info)); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return file.Close()
}

// bill lists Go's standard library and every linked module. It contains no time, so that the same
// tree gives the same bill.
func bill(version string, info *debug.BuildInfo) *cyclonedx.BOM {
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{
		BOMRef: "tarn", Type: cyclonedx.ComponentTypeContainer, Name: "tarn", Version: version, PackageURL: "pkg:oci/tarn?tag=" + version,
	}}
	components := []cyclonedx.Component{component("std", "v"+strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		components = append(components, component(module.Path, module.Version))
	}
	bom.Components = &components
	return bom
}

func component(path, version string) cyclonedx.Component {
	reference := "pkg:golang/" + path + "@" + version
	return cyclonedx.Component{BOMRef: reference, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: reference}
}
