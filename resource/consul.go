// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/wanfed/wanfed/api/pb"
)

// Clients of Consul call the resource service under its name in Consul. The
// requests are compatible: names of messages are not on the wire, and the field
// numbers are equal.
const (
	consulPackage = "hashicorp.consul.resource"
	consulFile    = "pbresource/resource.proto"
	// ConsulService is the name of the resource service in Consul.
	ConsulService = consulPackage + ".ResourceService"
)

// RegisterService registers s under its own name and as ConsulService.
func RegisterService(r grpc.ServiceRegistrar, s pb.ResourceServiceServer) {
	pb.RegisterResourceServiceServer(r, s)
	consul := pb.ResourceService_ServiceDesc
	consul.ServiceName, consul.Metadata = ConsulService, consulFile
	r.RegisterService(&consul, s)
}

// CanonicalMethod translates a gRPC method of ConsulService,
// "/package.Service/Method", to the same method of the resource service.
// CanonicalMethod returns other methods unchanged.
func CanonicalMethod(full string) string {
	if name, ok := strings.CutPrefix(full, "/"+ConsulService+"/"); ok {
		return "/" + pb.ResourceService_ServiceDesc.ServiceName + "/" + name
	}
	return full
}

// NewDescriptors returns the files for gRPC reflection: the files of the
// program, and a file for ConsulService.
func NewDescriptors() (*protoregistry.Files, error) {
	consul, err := consulDescriptor()
	if err != nil {
		return nil, fmt.Errorf("descriptor of %s: %w", ConsulService, err)
	}
	files := new(protoregistry.Files)
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		// A program that links Consul's package has its own file at this path.
		if f.Path() != consulFile {
			err = files.RegisterFile(f)
		}
		return err == nil
	})
	return files, errors.Join(err, files.RegisterFile(consul))
}

// consulDescriptor derives the file of ConsulService from the file of the
// resource service, by replacing the package in the names of types.
func consulDescriptor() (protoreflect.FileDescriptor, error) {
	file := pb.File_api_pb_resource_proto
	text, err := protojson.Marshal(protodesc.ToFileDescriptorProto(file))
	if err != nil {
		return nil, err
	}
	text = bytes.ReplaceAll(text, []byte(`".`+file.Package()+`.`), []byte(`".`+consulPackage+`.`))
	p := new(descriptorpb.FileDescriptorProto)
	if err := protojson.Unmarshal(text, p); err != nil {
		return nil, err
	}
	p.Name, p.Package, p.Options = proto.String(consulFile), proto.String(consulPackage), nil
	return protodesc.NewFile(p, protoregistry.GlobalFiles)
}
